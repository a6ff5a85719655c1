//! Finds out which part of a mapping is missing, by the kernel's list of mappings.

use core::ops::Range;
use std::fs::File;
use std::io::{BufRead, BufReader};

/// Returns the lines of the kernel's list of the mappings of this process. Reads them one by one: if
/// the process has as many mappings as the kernel permits, there is no memory for all of them.
pub(super) fn mappings() -> Option<impl Iterator<Item = Vec<u8>>> {
    let list = BufReader::new(File::open("/proc/self/maps").ok()?);
    Some(list.split(b'\n').map_while(Result::ok))
}

/// Returns the first addresses of a range at which no memory file of a view is mapped with these
/// rights. `rights` is a beginning of the kernel's text, such as `rw`. Pages for which `is_guarded`
/// returns true need only the right to be read. The list of mappings is ordered by address.
pub(super) fn first_gap(
    mappings: impl Iterator<Item = impl AsRef<[u8]>>,
    wanted: &Range<usize>,
    rights: &str,
    is_guarded: impl Fn(Range<usize>) -> bool,
) -> Option<Range<usize>> {
    let mut start = wanted.start;
    let mapped = mappings.filter_map(|line| {
        let line = str::from_utf8(line.as_ref()).ok()?;
        let inside = |found: Range<usize>| {
            found.start.max(wanted.start)..found.end.clamp(wanted.start, wanted.end)
        };
        let guarded = || mapping(line, "r--").filter(|found| is_guarded(inside(found.clone())));
        mapping(line, rights).or_else(guarded)
    });
    for mapping in mapped.filter(|mapping| mapping.end > wanted.start) {
        if mapping.start > start {
            return Some(start..mapping.start.min(wanted.end));
        }
        start = mapping.end;
        if start >= wanted.end {
            return None;
        }
    }
    Some(start..wanted.end)
}

/// Returns the addresses of a mapping, if it is one of a memory file with these rights.
fn mapping(line: &str, rights: &str) -> Option<Range<usize>> {
    let (addresses, rest) = line.split_once(' ')?;
    if !rest.starts_with(rights) || !rest.contains(MEMORY_FILE) {
        return None;
    }
    let (start, end) = addresses.split_once('-')?;
    let number = |text| usize::from_str_radix(text, 16).ok();
    Some(number(start)?..number(end)?)
}

/// How the kernel lists the memory file of a view.
const MEMORY_FILE: &str = "/memfd:page-faults";

#[cfg(test)]
mod tests {
    use super::*;

    const MAPPINGS: &str = "\
        00001000-00002000 r-xp 00000000 08:01 1234   /usr/bin/program\n\
        00010000-00012000 rw-s 00000000 00:01 7      /memfd:page-faults (deleted)\n\
        00012000-00013000 ---s 00002000 00:01 7      /memfd:page-faults (deleted)\n\
        00013000-00015000 rw-s 00003000 00:01 7      /memfd:page-faults (deleted)\n\
        00015000-00016000 rw-p 00000000 00:00 0 \n\
        00018000-00019000 rw-s 00008000 00:01 7      /memfd:page-faults (deleted)\n";

    #[test]
    fn the_first_missing_addresses_are_found() {
        let gap = |wanted, rights| first_gap(MAPPINGS.lines(), &wanted, rights, |_| false);
        assert_eq!(gap(0x10000..0x12000, "rw"), None);
        assert_eq!(gap(0x10000..0x15000, "rw"), Some(0x12000..0x13000), "protected");
        assert_eq!(gap(0x10000..0x15000, ""), None);
        assert_eq!(gap(0x11000..0x12800, "rw"), Some(0x12000..0x12800));
        assert_eq!(gap(0x13000..0x19000, "rw"), Some(0x15000..0x18000), "replaced and unmapped");
        assert_eq!(gap(0x18000..0x1a000, "rw"), Some(0x19000..0x1a000), "unmapped at the end");
        assert_eq!(gap(0x1a000..0x1b000, "rw"), Some(0x1a000..0x1b000), "unmapped as a whole");
    }

    #[test]
    fn guarded_pages_need_only_be_readable() {
        let mappings = "\
            00010000-00012000 rw-s 00000000 00:01 7      /memfd:page-faults (deleted)\n\
            00012000-00014000 r--s 00002000 00:01 7      /memfd:page-faults (deleted)\n\
            00014000-00015000 ---s 00004000 00:01 7      /memfd:page-faults (deleted)\n";
        let gap = |wanted, guarded: Range<usize>| {
            first_gap(mappings.lines(), &wanted, "rw", |found| {
                guarded.start <= found.start && found.end <= guarded.end
            })
        };
        assert_eq!(gap(0x10000..0x14000, 0x12000..0x14000), None);
        assert_eq!(gap(0x10000..0x13000, 0x12000..0x13000), None);
        assert_eq!(gap(0x10000..0x14000, 0x12000..0x13000), Some(0x12000..0x14000));
        assert_eq!(gap(0x10000..0x15000, 0x12000..0x15000), Some(0x14000..0x15000));
    }
}
