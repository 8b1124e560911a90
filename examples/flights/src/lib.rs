//! Delays of departures by the hour, for each of New York's three airports.

use foldmq_guest::prelude::*;

#[derive(Deserialize)]
struct Flight {
    origin: String,
    departed_at: Option<Timestamp>,
    dep_delay: Option<i64>,
}

/// Hourly windows on the actual departure; cancelled flights are counted and left out.
pub fn hourly() -> impl Fold {
    stream::<Flight>()
        .key_by(|flight| flight.origin.clone())
        .tumbling(hours(1))
        .event_time(|flight| flight.departed_at.or_skip("cancelled"))
        .idle_ms(30_000)
        .aggregate(|a| {
            a.count("count")
                .sum("sum_dep_delay", |flight| flight.dep_delay)
                .min("min_dep_delay", |flight| flight.dep_delay)
                .max("max_dep_delay", |flight| flight.dep_delay)
        })
        .with_window("origin", "window_start", "window_end")
        .sink("flights.hourly")
}

foldmq_guest::export_fold!(hourly);
