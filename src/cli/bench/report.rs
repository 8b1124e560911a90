//! What is shown: a table for people, an object for tools.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde_json::{Map, Value, json};

use super::hosted::Counted;
use super::measure::{Pair, float, median};
use super::stage::Stage;

/// Everything that was found out.
#[derive(Default)]
pub(super) struct Report {
    lines: Vec<[String; 6]>,
    ratios: Map<String, Value>,
    rates: Map<String, Value>,
    conditions: Map<String, Value>,
    notes: Vec<String>,
}

/// A number with so many digits that they mean something.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => {
            let digits = format!("{value:.0}");
            let mut text = String::new();
            for (i, digit) in digits.chars().enumerate() {
                if i > 0 && (digits.len() - i) % 3 == 0 {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Rounded for reading; the noise is far above the fourth digit.
fn rounded(value: f64) -> Value {
    json!((value * 1e4).round() / 1e4)
}

impl Report {
    /// Adds a comparison under the name of its ratio; `unit` is what is counted a second.
    pub(super) fn pair(&mut self, ratio: &str, [what, than, unit]: [&str; 3], pair: &Pair) {
        let ratios = pair.ratios();
        let (base, mine) = (median(&pair.base), median(&pair.mine));
        let spread = match (ratios.first(), ratios.last()) {
            (Some(least), Some(most)) => format!("{}-{}", short(*least), short(*most)),
            _ => String::new(),
        };
        self.lines.push([
            what.to_owned(),
            short(mine),
            than.to_owned(),
            short(base),
            format!("{} ({spread})", short(median(&ratios))),
            unit.to_owned(),
        ]);
        self.ratios.insert(ratio.to_owned(), rounded(median(&ratios)));
        self.rate(what, mine);
        self.rate(than, base);
    }

    /// Adds a ratio that is no quotient of rates.
    pub(super) fn ratio(&mut self, name: &str, value: f64) {
        self.ratios.insert(name.to_owned(), rounded(value));
    }

    /// Adds a figure under the words that name it.
    pub(super) fn rate(&mut self, name: &str, value: f64) {
        let key: String =
            name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        self.rates.insert(key, rounded(value));
    }

    /// Adds what guests took of hosted cycles.
    pub(super) fn guest(&mut self, of: &str, counted: &Counted) {
        let (share, us) = (counted.guest_share(), counted.guest_us_per_message());
        let cycle_us = float(counted.cycle_us) / float(counted.cycles);
        self.rate(&format!("guest share of cycle, {of}"), share);
        self.rate(&format!("guest us a message, {of}"), us);
        self.rate(&format!("cycle us, {of}"), cycle_us);
        self.notes.push(format!(
            "{of}: {:.1} % of a cycle is the guest call ({} of {} us), {us:.2} us a message",
            share * 100.0,
            short(share * cycle_us),
            short(cycle_us),
        ));
    }

    /// Adds a condition of the run.
    pub(super) fn condition(&mut self, name: &str, value: impl Into<Value>) {
        self.conditions.insert(name.to_owned(), value.into());
    }

    /// Reads what the machine and the database are.
    pub(super) async fn conditions_of(&mut self, stage: &Stage) -> anyhow::Result<()> {
        let client = stage.client().await?;
        for setting in
            ["server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers"]
        {
            let row = client.query_one("select current_setting($1)", &[&setting]).await?;
            self.condition(&format!("postgresql_{setting}"), row.get::<_, String>(0));
        }
        self.condition("store", stage.server().store());
        self.condition("cores", std::thread::available_parallelism().map_or(0, usize::from));
        self.condition("foldmq_version", env!("CARGO_PKG_VERSION"));
        let build = if cfg!(debug_assertions) { "debug" } else { "release" };
        self.condition("build", build);
        Ok(())
    }

    /// Notes the load of the machine, where the system tells it.
    pub(super) fn load(&mut self, when: &str) {
        let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load: Vec<f64> =
            text.split_whitespace().take(3).filter_map(|word| word.parse().ok()).collect();
        self.condition(&format!("load_average_{when}"), load);
    }

    /// The object for tools.
    pub(super) fn json(&self) -> Value {
        json!({"ratios": self.ratios, "rates": self.rates, "conditions": self.conditions})
    }

    /// The table for people.
    pub(super) fn text(&self) -> String {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_header(["foldmq", "per s", "against", "per s", "ratio (rounds)", "unit"]);
        for line in &self.lines {
            table.add_row(line);
        }
        for column in [1, 3, 4] {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = table.to_string();
        for note in &self.notes {
            text.push_str("\n  ");
            text.push_str(note);
        }
        text.push_str("\n\nconditions");
        for (name, value) in &self.conditions {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            text.push_str(&format!("\n  {:28} {value}", name.replace('_', " ")));
        }
        if cfg!(debug_assertions) {
            text.push_str("\n\nThis is a debug build: its figures say nothing about a release.");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        assert_eq!(short(0.712), "0.71");
        assert_eq!(short(23.456), "23.5");
        assert_eq!(short(314_700.4), "314,700");
        assert_eq!(short(512.0), "512");
    }

    #[test]
    fn a_pair_gives_its_ratio_and_both_rates() {
        let mut report = Report::default();
        let pair = Pair { base: vec![200.0, 100.0], mine: vec![100.0, 75.0] };
        report.pair("a_vs_b", ["what a", "what b", "things"], &pair);
        let json = report.json();
        assert_eq!(json["ratios"]["a_vs_b"], 0.625);
        assert_eq!(json["rates"]["what_a"], 87.5);
        assert!(report.text().contains("0.62 (0.50-0.75)"), "{}", report.text());
    }
}
