//! How a person installs PostgreSQL on this machine; part of error texts.

use std::fs;

/// Tells how PostgreSQL is installed on this machine, with one command where that is known.
pub(super) fn command(major: Option<u32>) -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    command_for(&release, cfg!(target_os = "macos"), major)
}

fn command_for(release: &str, macos: bool, major: Option<u32>) -> String {
    let ids: Vec<&str> = release
        .lines()
        .filter_map(|line| line.strip_prefix("ID=").or_else(|| line.strip_prefix("ID_LIKE=")))
        .flat_map(|value| value.trim_matches(['"', '\'']).split_whitespace())
        .collect();
    let is = |names: &[&str]| ids.iter().any(|id| names.contains(id));
    let number = major.map(|major| major.to_string()).unwrap_or_default();
    let dashed = if number.is_empty() { String::new() } else { format!("-{number}") };
    if macos {
        let number = if number.is_empty() { "17" } else { &number };
        format!("`brew install postgresql@{number}`")
    } else if is(&["debian", "ubuntu"]) {
        format!("`apt-get install postgresql{dashed}`")
    } else if is(&["fedora", "rhel", "centos", "amzn"]) {
        match number.as_str() {
            "" => "`dnf install postgresql-server`".to_owned(),
            _ => format!("`dnf install postgresql{number}-server`"),
        }
    } else if is(&["alpine"]) {
        format!("`apk add postgresql{number}`")
    } else if is(&["suse", "opensuse"]) {
        format!("`zypper install postgresql{number}-server`")
    } else if is(&["arch"]) {
        "`pacman -S postgresql`".to_owned()
    } else {
        let which = major.map_or_else(|| "14 or newer".to_owned(), |major| major.to_string());
        format!("install PostgreSQL {which} with this system's package manager")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_fits_the_platform() {
        let of = |release, major| command_for(release, false, major);
        assert_eq!(of("ID=debian\n", None), "`apt-get install postgresql`");
        assert!(of("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Some(16)).contains("-16"));
        assert!(of("ID=\"rocky\"\nID_LIKE=\"rhel centos\"", None).contains("dnf"));
        assert_eq!(of("ID=alpine", Some(17)), "`apk add postgresql17`");
        assert!(of("", None).contains("14 or newer"));
        assert!(command_for("", true, None).contains("brew"));
    }
}
