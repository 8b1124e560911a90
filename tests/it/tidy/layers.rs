//! Imports go down only.

use super::{files, read, root, shown};

/// Layers from the top. Those of one line are level and do not know each other.
const LAYERS: &[&[&str]] = &[
    &["cli"],
    &["server"],
    &["http"],
    &["hosted"],
    &["broker", "fold"],
    &["postgres", "db"],
    &["log"],
    &["types"],
    &["telemetry"],
];

/// What a layer may not know although it stands below.
const APART: &[(&str, &str)] = &[("fold", "db"), ("fold", "log")];

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|level| level.contains(&module))
}

/// Modules that a line of code names through `crate::`.
fn named(line: &str) -> Vec<&str> {
    let code = line.split("//").next().unwrap_or_default();
    code.split("crate::")
        .skip(1)
        .map(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            &rest[..end.unwrap_or(rest.len())]
        })
        .collect()
}

#[test]
fn imports_go_down_only() {
    let mut faults = Vec::new();
    for path in files("src", ".rs") {
        let inside = path.strip_prefix(root().join("src")).expect("inside src");
        let first = inside.components().next().expect("a name");
        let module = first.as_os_str().to_string_lossy().replace(".rs", "");
        let Some(mine) = rank(&module) else {
            assert!(matches!(module.as_str(), "lib" | "main"), "{module} stands in no layer");
            continue;
        };
        for (at, line) in read(&path).lines().enumerate() {
            for other in named(line) {
                let Some(theirs) = rank(other) else { continue };
                let apart = APART.contains(&(module.as_str(), other));
                if other != module && (theirs <= mine || apart) {
                    faults.push(format!("{}:{}: {module} names {other}", shown(&path), at + 1));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// SQL stands in `src/db` alone; the bench drives the database directly and says so.
#[test]
fn sql_stops_at_the_store() {
    let mut faults = Vec::new();
    for path in files("src", ".rs") {
        let name = shown(&path);
        if ["src/db", "src/postgres", "src/cli/bench"].iter().any(|at| name.starts_with(at)) {
            continue;
        }
        for (at, line) in read(&path).lines().enumerate() {
            let starts = ["\"select ", "\"insert into ", "\"update ", "\"delete from "];
            if starts.iter().any(|start| line.contains(start))
                || line.contains("tokio_postgres::Row")
            {
                faults.push(format!("{name}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_statement_is_used_and_says_what_it_is_for() {
    let code: String = files("src/db", ".rs").iter().map(|path| read(path)).collect();
    for path in files("src/db/sql", ".sql") {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(code.contains(&format!("sql/{name}\"")), "{name} is not used");
        assert!(read(&path).starts_with("-- "), "{name} has no head comment");
    }
    let migrate = read(&root().join("src/db/migrate.rs"));
    for path in files("migrations", ".sql") {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(migrate.contains(&name), "{name} is not applied");
        assert!(read(&path).starts_with("-- "), "{name} has no head comment");
    }
}
