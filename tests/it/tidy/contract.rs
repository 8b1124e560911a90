//! Every numbered statement of the wire has a test that names it, or a reason why not.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, read};

const STREAMS: &str = include_str!("statements/streams.txt");
const DATA: &str = include_str!("statements/data.txt");
/// `family id: reason` for statements without a test.
const OPEN: &str = include_str!("statements/open.txt");

/// Statements that doc lines of tests name, as `streams Q10` or `data 17`.
fn tested() -> BTreeSet<(String, String)> {
    let mut found = BTreeSet::new();
    let sources =
        [files("tests/it", ".rs"), files("src", ".rs"), files("guest-sdk", ".rs")].concat();
    for path in sources {
        for line in read(&path).lines() {
            let Some(doc) = line.trim().strip_prefix("///") else { continue };
            let mut family = None;
            for word in doc.split(|c: char| !c.is_ascii_alphanumeric() && c != '-') {
                match word {
                    "streams" | "data" | "control" | "operators" => family = Some(word),
                    "data-plane" => family = Some("data"),
                    "" | "and" | "to" => {}
                    id => {
                        let digits = id.trim_start_matches(|c: char| c.is_ascii_uppercase());
                        let numbered = !digits.is_empty() && digits.len() + 1 >= id.len();
                        match family {
                            Some(family) if numbered && digits.parse::<u32>().is_ok() => {
                                found.insert((family.to_owned(), id.to_owned()));
                            }
                            _ => family = None,
                        }
                    }
                }
            }
        }
    }
    found
}

fn open() -> BTreeMap<(String, String), String> {
    OPEN.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .map(|line| {
            let (statement, reason) = line.split_once(": ").expect("family id: reason");
            let (family, id) = statement.split_once(' ').expect("family id");
            assert!(reason.len() > 10, "{statement} has no reason");
            ((family.to_owned(), id.to_owned()), reason.to_owned())
        })
        .collect()
}

#[test]
fn every_statement_has_a_test_or_a_reason() {
    let (tested, open) = (tested(), open());
    let mut faults = Vec::new();
    for (family, list) in [("streams", STREAMS), ("data", DATA)] {
        for id in list.lines() {
            let statement = (family.to_owned(), id.to_owned());
            match (tested.contains(&statement), open.contains_key(&statement)) {
                (false, false) => faults.push(format!("{family} {id} has no test and no reason")),
                (true, true) => faults.push(format!("{family} {id} is tested and listed as open")),
                _ => {}
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
