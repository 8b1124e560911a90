//! The server's command line.
//!
//! Settings are arguments, so each start decides afresh and nothing in the data folder (an old
//! file, an `ALTER SYSTEM`) can change them. `fsync` and `full_page_writes` are deliberately
//! absent.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

/// Part of the memory that PostgreSQL's own documentation suggests for its cache.
const MEMORY_SHARE: u64 = 4;
const MIB: u64 = 1 << 20;
/// A bigger cache brought nothing to the broker's statements, which read what was just written.
const BUFFERS_MAX: u64 = 1024 * MIB;
/// Most for a machine with less than 4 GiB, where other programs need the room.
const BUFFERS_MAX_SMALL: u64 = 256 * MIB;
const SMALL_MACHINE: u64 = 4096 * MIB;
const BUFFERS_MIN: u64 = 16 * MIB;
/// Fewer leave no room beside the connections that PostgreSQL reserves.
const CONNECTIONS_MIN: u32 = 10;

/// Arguments of `postgres` for a private cluster.
pub(super) fn arguments(
    data: &Path,
    socket_dir: &Path,
    max_connections: u32,
    has_lz4: bool,
) -> Vec<OsString> {
    let connections = max_connections.max(CONNECTIONS_MIN);
    let buffers_mib = shared_buffers(memory_bytes()) / MIB;
    let mut socket_setting = OsString::from("unix_socket_directories=");
    socket_setting.push(socket_dir);
    let mut arguments = vec![OsString::from("-D"), data.as_os_str().to_owned()];
    let mut set = |setting: OsString| arguments.extend(["-c".into(), setting]);
    set(socket_setting);
    set(format!("port={}", super::PORT).into());
    set(format!("max_connections={connections}").into());
    set(format!("shared_buffers={buffers_mib}MB").into());
    for setting in [
        // No TCP: with trust, every user of the machine would be the superuser.
        "listen_addresses=",
        "unix_socket_permissions=0700",
        // Loaded at start, since an upgrade of the package may replace the file while the server
        // runs, and the old program cannot load the new library.
        "shared_preload_libraries=plpgsql",
        "max_wal_size=4GB",
        "checkpoint_timeout=15min",
        // A client that connects and says nothing would delay a stop by this long.
        "authentication_timeout=10s",
        "jit=off",
        "huge_pages=off",
        "ssl=off",
        "timezone=UTC",
        "log_timezone=UTC",
        "lc_messages=C",
        "logging_collector=off",
        "log_destination=stderr",
        "log_line_prefix=%m [%p] ",
        "log_checkpoints=off",
        // Statements may hold payloads; they stay out of the log.
        "log_min_error_statement=panic",
        "cluster_name=foldmq",
    ] {
        set(setting.into());
    }
    if has_lz4 {
        set("wal_compression=lz4".into());
    }
    arguments
}

fn shared_buffers(memory: Option<u64>) -> u64 {
    let memory = memory.unwrap_or(SMALL_MACHINE / 4);
    let most = if memory < SMALL_MACHINE { BUFFERS_MAX_SMALL } else { BUFFERS_MAX };
    (memory / MEMORY_SHARE).clamp(BUFFERS_MIN, most)
}

/// Memory of the machine or, if that is less, the limit of the container; nothing where unknown.
fn memory_bytes() -> Option<u64> {
    let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    });
    let limits = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let limit = limits.iter().find_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok());
    total.into_iter().chain(limit).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_a_quarter_of_memory_within_bounds() {
        assert_eq!(shared_buffers(Some(32 << 30)), BUFFERS_MAX);
        assert_eq!(shared_buffers(Some(4 << 30)), BUFFERS_MAX);
        assert_eq!(shared_buffers(Some(3 << 30)), BUFFERS_MAX_SMALL);
        assert_eq!(shared_buffers(Some(512 * MIB)), 128 * MIB);
        assert_eq!(shared_buffers(Some(1)), BUFFERS_MIN);
        assert_eq!(shared_buffers(None), BUFFERS_MAX_SMALL);
    }

    #[test]
    fn durability_is_never_weakened() {
        let arguments = arguments(Path::new("/d"), Path::new("/s"), 0, true);
        let texts: Vec<_> = arguments.iter().map(|a| a.to_string_lossy()).collect();
        assert!(texts.iter().any(|a| a == "max_connections=10"));
        for word in ["fsync", "full_page_writes", "synchronous_commit"] {
            assert!(!texts.iter().any(|a| a.contains(word)), "{word}");
        }
    }
}
