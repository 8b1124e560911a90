//! Rounds: compared variants take turns in short windows of one run.
//!
//! Rates of a shared machine drift by the second; the ratio inside a round does not as much. So a
//! result is the median of the ratios of rounds, never the ratio of two far windows.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

/// Discarded window before the first round: statements are prepared, caches filled.
const WARM_UP: Duration = Duration::from_millis(300);

/// One client that repeats its work.
pub(super) trait Driver: Send + 'static {
    /// Does one unit of work; gives what it counts as, 0 when there is nothing left to do.
    fn step(&mut self) -> impl Future<Output = anyhow::Result<u64>> + Send;
}

/// How long things are measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Rounds of each comparison.
    pub(super) rounds: u32,
    /// Length of one variant's part of a round.
    pub(super) window: Duration,
}

/// Rates of two variants by round, per second.
#[derive(Clone, Debug, Default)]
pub(super) struct Pair {
    /// What is compared with.
    pub(super) base: Vec<f64>,
    /// What is measured.
    pub(super) mine: Vec<f64>,
}

impl Pair {
    /// Ratios of the rounds, ascending.
    pub(super) fn ratios(&self) -> Vec<f64> {
        let mut ratios: Vec<f64> =
            self.base.iter().zip(&self.mine).map(|(base, mine)| mine / base).collect();
        ratios.sort_by(f64::total_cmp);
        ratios
    }
}

/// The middle value; NaN of nothing.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let mid = sorted.len() / 2;
    match (sorted.len() % 2, sorted.get(mid)) {
        (_, None) => f64::NAN,
        (1, Some(value)) => *value,
        (_, Some(upper)) => f64::midpoint(sorted[mid - 1], *upper),
    }
}

/// A count as a rate's numerator.
pub(super) fn float(n: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let float = n as f64;
    float
}

/// Lets every driver work until the time is over; gives them back with what they did per second.
///
/// A driver is measured until its own last unit is done, so nothing is cut off or counted half.
pub(super) async fn window<D: Driver>(
    drivers: Vec<D>,
    time: Duration,
) -> anyhow::Result<(Vec<D>, f64)> {
    let mut tasks = JoinSet::new();
    for mut driver in drivers {
        tasks.spawn(async move {
            let begun = Instant::now();
            let mut done = 0;
            loop {
                let n = driver.step().await?;
                done += n;
                if n == 0 || begun.elapsed() >= time {
                    return Ok((driver, float(done) / begun.elapsed().as_secs_f64()));
                }
            }
        });
    }
    let (mut back, mut rate) = (Vec::new(), 0.0);
    while let Some(ended) = tasks.join_next().await {
        let (driver, own): (D, f64) = ended?.map_err(|e: anyhow::Error| e)?;
        back.push(driver);
        rate += own;
    }
    Ok((back, rate))
}

/// Compares two sets of drivers, turn by turn; the order changes from round to round.
pub(super) async fn duel<A: Driver, B: Driver>(
    pace: Pace,
    mut base: Vec<A>,
    mut mine: Vec<B>,
) -> anyhow::Result<Pair> {
    (base, _) = window(base, WARM_UP).await?;
    (mine, _) = window(mine, WARM_UP).await?;
    let mut pair = Pair::default();
    for round in 0..pace.rounds {
        for turn in [round % 2, (round + 1) % 2] {
            let rate;
            if turn == 0 {
                (base, rate) = window(base, pace.window).await?;
                pair.base.push(rate);
            } else {
                (mine, rate) = window(mine, pace.window).await?;
                pair.mine.push(rate);
            }
        }
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert!(median(&[]).is_nan());
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let pair = Pair { base: vec![2.0, 4.0], mine: vec![4.0, 4.0] };
        assert_eq!(pair.ratios(), [1.0, 2.0]);
    }
}
