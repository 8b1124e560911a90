//! Unpacks a zip archive whose bytes are known beforehand.
//!
//! Only for an archive that was compared with a pinned hash: it reads the one layout that packing
//! tools for wheels write (no archive parts, no 64-bit records, no encryption), checks bounds and
//! checksums, and refuses all else. No link is made and no name leads out of the target folder.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path};

use flate2::read::DeflateDecoder;

const END_SIGNATURE: u32 = 0x0605_4b50;
const ENTRY_SIGNATURE: u32 = 0x0201_4b50;
const LOCAL_SIGNATURE: u32 = 0x0403_4b50;
const END_BYTES: usize = 22;
/// An end mark is looked for this far from the end, which leaves room for an archive comment.
const COMMENT_BYTES_MAX: usize = 1 << 16;

/// Writes every file for which `wanted` holds below `target`.
pub(super) fn unzip(
    archive: &[u8],
    target: &Path,
    wanted: impl Fn(&str) -> bool,
) -> io::Result<()> {
    let end = find_end(archive)?;
    let entries = u16_at(archive, end + 10)?;
    let mut at = offset_at(archive, end + 16)?;
    for _ in 0..entries {
        expect_signature(archive, at, ENTRY_SIGNATURE)?;
        let method = u16_at(archive, at + 10)?;
        let checksum = u32_at(archive, at + 16)?;
        let packed_bytes = offset_at(archive, at + 20)?;
        let bytes = offset_at(archive, at + 24)?;
        let name_bytes = usize::from(u16_at(archive, at + 28)?);
        let skip = usize::from(u16_at(archive, at + 30)?) + usize::from(u16_at(archive, at + 32)?);
        let local = offset_at(archive, at + 42)?;
        let name = std::str::from_utf8(slice(archive, at + 46, name_bytes)?)
            .map_err(|_invalid| bad("a name is not UTF-8"))?;
        at += 46 + name_bytes + skip;
        if name.ends_with('/') || !wanted(name) {
            continue;
        }
        let content = unpack(archive, local, method, packed_bytes, bytes)?;
        if flate_checksum(&content) != checksum {
            return Err(bad("a checksum is wrong"));
        }
        write(target, name, &content)?;
    }
    Ok(())
}

fn find_end(archive: &[u8]) -> io::Result<usize> {
    let last = archive.len().checked_sub(END_BYTES).ok_or_else(|| bad("too short"))?;
    let first = last.saturating_sub(COMMENT_BYTES_MAX);
    (first..=last)
        .rev()
        .find(|at| u32_at(archive, *at).is_ok_and(|found| found == END_SIGNATURE))
        .ok_or_else(|| bad("no end mark"))
}

fn unpack(
    archive: &[u8],
    local: usize,
    method: u16,
    packed_bytes: usize,
    bytes: usize,
) -> io::Result<Vec<u8>> {
    expect_signature(archive, local, LOCAL_SIGNATURE)?;
    let names =
        usize::from(u16_at(archive, local + 26)?) + usize::from(u16_at(archive, local + 28)?);
    let packed = slice(archive, local + 30 + names, packed_bytes)?;
    let content = match method {
        0 => packed.to_vec(),
        8 => {
            let mut content = Vec::new();
            let limit = u64::try_from(bytes).unwrap_or(u64::MAX);
            DeflateDecoder::new(packed).take(limit).read_to_end(&mut content)?;
            content
        }
        _ => return Err(bad("unknown packing method")),
    };
    if content.len() == bytes { Ok(content) } else { Err(bad("a length is wrong")) }
}

fn write(target: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let relative = Path::new(name);
    if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(bad("a name leads out of the folder"));
    }
    let path = target.join(relative);
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, content)
}

fn flate_checksum(content: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(content);
    crc.sum()
}

fn expect_signature(archive: &[u8], at: usize, signature: u32) -> io::Result<()> {
    if u32_at(archive, at)? == signature {
        Ok(())
    } else {
        Err(bad("a record is not in its place"))
    }
}

fn slice(archive: &[u8], at: usize, bytes: usize) -> io::Result<&[u8]> {
    let end = at.checked_add(bytes).ok_or_else(|| bad("too long"))?;
    archive.get(at..end).ok_or_else(|| bad("cut short"))
}

fn u16_at(archive: &[u8], at: usize) -> io::Result<u16> {
    slice(archive, at, 2).map(|b| u16::from_le_bytes([b[0], b[1]]))
}

fn u32_at(archive: &[u8], at: usize) -> io::Result<u32> {
    slice(archive, at, 4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn offset_at(archive: &[u8], at: usize) -> io::Result<usize> {
    usize::try_from(u32_at(archive, at)?).map_err(|_too_large| bad("too large"))
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the archive is damaged: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// One archive with a stored and a packed file, as packing tools lay it out.
    fn archive(names: [&str; 2]) -> Vec<u8> {
        let text = b"to be packed, packed, packed".repeat(9);
        let mut encoder =
            flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(&text).expect("into memory");
        let packed = encoder.finish().expect("into memory");
        let (mut files, mut directory) = (Vec::new(), Vec::new());
        let entries = [
            (names[0], 0u16, b"as it is".to_vec(), b"as it is".to_vec()),
            (names[1], 8, text, packed),
        ];
        for (name, method, content, packed) in &entries {
            let local = files.len();
            let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("small").to_le_bytes();
            let mut middle = method.to_le_bytes().to_vec();
            middle.extend([0; 4]);
            middle.extend(flate_checksum(content).to_le_bytes());
            middle.extend(length(packed));
            middle.extend(length(content));
            middle.extend(u16::try_from(name.len()).expect("small").to_le_bytes());
            middle.extend([0; 2]);
            files.extend(LOCAL_SIGNATURE.to_le_bytes());
            files.extend([0; 4]);
            files.extend(&middle);
            files.extend(name.as_bytes());
            files.extend(packed);
            directory.extend(ENTRY_SIGNATURE.to_le_bytes());
            directory.extend([0; 6]);
            directory.extend(&middle);
            directory.extend([0; 10]);
            directory.extend(u32::try_from(local).expect("small").to_le_bytes());
            directory.extend(name.as_bytes());
        }
        let start = u32::try_from(files.len()).expect("small");
        files.extend(&directory);
        files.extend(END_SIGNATURE.to_le_bytes());
        files.extend([0; 4]);
        files.extend([2, 0, 2, 0]);
        files.extend(u32::try_from(directory.len()).expect("small").to_le_bytes());
        files.extend(start.to_le_bytes());
        files.extend([0; 2]);
        files
    }

    #[test]
    fn wanted_files_are_written_whole() {
        let target = tempfile::tempdir().expect("temporary folder");
        unzip(&archive(["a/stored", "b/packed"]), target.path(), |_| true).expect("a good archive");
        assert_eq!(fs::read(target.path().join("a/stored")).expect("written"), b"as it is");
        let packed = fs::read(target.path().join("b/packed")).expect("written");
        assert_eq!(packed, b"to be packed, packed, packed".repeat(9));
        let target = tempfile::tempdir().expect("temporary folder");
        unzip(&archive(["a/stored", "b/packed"]), target.path(), |name| name.starts_with("b/"))
            .expect("a good archive");
        assert!(!target.path().join("a").exists());
    }

    #[test]
    fn damaged_archives_and_escaping_names_are_refused() {
        let target = tempfile::tempdir().expect("temporary folder");
        let refused = |archive: &[u8]| unzip(archive, target.path(), |_| true).is_err();
        assert!(refused(&archive(["../out", "b"])));
        assert!(refused(&archive(["/out", "b"])));
        let good = archive(["a", "b"]);
        for cut in 0..good.len() {
            assert!(refused(&good[..cut]), "cut after {cut} bytes");
        }
        let mut flipped = good;
        flipped[32] ^= 1;
        assert!(refused(&flipped));
    }
}
