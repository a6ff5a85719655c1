//! The program and the libraries of this process, as the loader has placed them.

use std::env;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::ptr::with_exposed_provenance;
use std::slice;

/// A program or library in the memory of this process.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    /// Name of the file, without its folder.
    name: String,
    /// What the loader has added to the addresses in the file.
    base: usize,
    segments: Vec<Segment>,
}

/// A part of a file in memory.
#[derive(Clone, Debug)]
struct Segment {
    kind: u32,
    flags: u32,
    memory: Range<usize>,
}

/// An entry of the dynamic section.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// A place that the loader fills in when it loads the file.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Relocation {
    offset: u64,
    info: u64,
    addend: i64,
}

/// A name of the file, with what it stands for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Symbol {
    name: u32,
    info: u8,
    other: u8,
    section: u16,
    value: u64,
    size: u64,
}

/// Returns the program, which is first, and the libraries.
pub(crate) fn all() -> Vec<Loaded> {
    let mut found = Vec::<Loaded>::new();
    // SAFETY: `collect` gets a pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(collect), (&raw mut found).cast()) };
    found
}

/// Returns the program.
pub(crate) fn program() -> Option<Loaded> {
    all().into_iter().next()
}

/// Adds a loaded file to the list at `found`.
unsafe extern "C" fn collect(
    info: *mut libc::dl_phdr_info,
    _size: usize,
    found: *mut c_void,
) -> c_int {
    // SAFETY: the loader passes a valid description, and `all` a valid list.
    let (info, found) = unsafe { (&*info, &mut *found.cast::<Vec<Loaded>>()) };
    let name = if found.is_empty() {
        // The loader gives the program no name.
        env::current_exe().map(|path| path.display().to_string()).unwrap_or_default()
    } else if info.dlpi_name.is_null() {
        String::new()
    } else {
        // SAFETY: the loader's names end with a zero byte.
        unsafe { CStr::from_ptr(info.dlpi_name) }.to_string_lossy().into_owned()
    };
    let base = info.dlpi_addr as usize;
    // SAFETY: the loader's description has this number of headers.
    let headers = unsafe { slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
    let segments = headers.iter().map(|header| {
        let start = base.wrapping_add(header.p_vaddr as usize);
        let memory = start..start.wrapping_add(header.p_memsz as usize);
        Segment { kind: header.p_type, flags: header.p_flags, memory }
    });
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    found.push(Loaded { name, base, segments: segments.collect() });
    0
}

impl Loaded {
    /// Returns a line that identifies the file and its place. Equal lines in two processes mean that
    /// functions and variables of the file have the same addresses in both.
    pub(crate) fn description(&self) -> Description {
        let identity = self.build_id().unwrap_or_else(|| "none".into());
        Description { name: self.name.clone(), base: self.base, identity }
    }

    /// Returns the parts of the memory that the program may change: its global variables, and data
    /// of the loader.
    pub(crate) fn writable(&self) -> Vec<Range<usize>> {
        let is_writable = |part: &&Segment| part.kind == libc::PT_LOAD && part.flags & WRITE != 0;
        self.segments.iter().filter(is_writable).map(|part| part.memory.clone()).collect()
    }

    /// Returns the parts of [`Self::writable`] that belong to others: what the loader has made
    /// read-only, and the variables of libraries, such as `stdout`.
    pub(crate) fn foreign(&self) -> Vec<Range<usize>> {
        let is_protected = |part: &&Segment| part.kind == libc::PT_GNU_RELRO;
        let protected = self.segments.iter().filter(is_protected).map(|part| part.memory.clone());
        let copied = self.relocations().into_iter().filter(|place| place.kind() == COPY);
        let copied = copied.filter_map(|place| {
            let start = self.base.wrapping_add(place.offset as usize);
            Some(start..start.wrapping_add(self.symbol(place)?.size as usize))
        });
        protected.chain(copied).collect()
    }

    /// Returns whether the file uses a function or variable of a library.
    pub(crate) fn imports(&self, name: &CStr) -> bool {
        self.relocations().into_iter().any(|place| {
            let symbol = self.symbol(place).filter(|symbol| symbol.section == UNDEFINED);
            symbol.and_then(|symbol| self.name_of(symbol)) == Some(name)
        })
    }

    /// Returns whether an address is in the code of the file.
    pub(crate) fn has_code(&self, address: usize) -> bool {
        let is_code = |part: &&Segment| part.kind == libc::PT_LOAD && part.flags & EXECUTE != 0;
        self.segments.iter().filter(is_code).any(|part| part.memory.contains(&address))
    }

    /// Returns the build id of the file, in hexadecimal digits. For a program without one, returns a
    /// number that depends on all bytes of its file.
    fn build_id(&self) -> Option<String> {
        let notes = self.segments.iter().filter(|part| part.kind == libc::PT_NOTE);
        let found = notes.map(|part| bytes_at(&part.memory)).find_map(build_id_in);
        let is_program = self.segments.iter().any(|part| part.kind == libc::PT_INTERP);
        let of_file = || {
            let bytes = fs::read("/proc/self/exe").ok().filter(|_| is_program)?;
            // FNV-1a.
            let mix =
                |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            Some(format!("{:016x}", bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)))
        };
        found.or_else(of_file)
    }

    fn relocations(&self) -> Vec<Relocation> {
        let tables = [(RELOCATIONS, RELOCATION_BYTES), (CALLS, CALL_BYTES)];
        let tables = tables.into_iter().filter_map(|(table, bytes)| {
            let (start, bytes) = (self.address(table)?, self.value(bytes)? as usize);
            let count = bytes / size_of::<Relocation>();
            let start = with_exposed_provenance::<Relocation>(start);
            // SAFETY: the dynamic section of a loaded file describes its tables in memory, which are
            // aligned and do not change.
            Some(unsafe { slice::from_raw_parts(start, count) })
        });
        tables.flatten().copied().collect()
    }

    fn symbol(&self, place: Relocation) -> Option<Symbol> {
        let index = (place.info >> 32) as usize;
        let table = self.address(SYMBOLS).filter(|_| index != 0)?;
        let symbol = with_exposed_provenance::<Symbol>(table).wrapping_add(index);
        // SAFETY: as for the relocations, whose indices are in the table.
        Some(unsafe { symbol.read() })
    }

    fn name_of(&self, symbol: Symbol) -> Option<&CStr> {
        let name = self.address(STRINGS)?.wrapping_add(symbol.name as usize);
        // SAFETY: as for the relocations. The names end with zero bytes.
        Some(unsafe { CStr::from_ptr(with_exposed_provenance::<c_char>(name)) })
    }

    /// Returns the address in an entry of the dynamic section. glibc has added the base to it, other
    /// loaders have not.
    fn address(&self, tag: i64) -> Option<usize> {
        let value = self.value(tag)? as usize;
        Some(if value < self.base { self.base.wrapping_add(value) } else { value })
    }

    /// Returns the value of an entry of the dynamic section.
    fn value(&self, tag: i64) -> Option<u64> {
        let section = self.segments.iter().find(|part| part.kind == libc::PT_DYNAMIC)?;
        let start = with_exposed_provenance::<Dynamic>(section.memory.start);
        let count = section.memory.len() / size_of::<Dynamic>();
        // SAFETY: the section of a loaded file is in memory, and aligned.
        let entries = unsafe { slice::from_raw_parts(start, count) };
        let mut entries = entries.iter().take_while(|entry| entry.tag != END);
        entries.find(|entry| entry.tag == tag).map(|entry| entry.value)
    }
}

impl Relocation {
    const fn kind(self) -> u32 {
        self.info as u32
    }
}

/// The identity and the place of a loaded file.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Description {
    /// Name of the file, without its folder.
    pub(crate) name: String,
    /// What the loader has added to the addresses in the file.
    pub(crate) base: usize,
    /// The build id, in hexadecimal digits.
    pub(crate) identity: String,
}

impl Description {
    /// Returns a line of text for [`Self::from_line`].
    pub(crate) fn to_line(&self) -> String {
        format!("{:x} {} {}", self.base, self.identity, self.name)
    }

    /// Returns what a line of text describes.
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let (base, rest) = line.split_once(' ')?;
        let (identity, name) = rest.split_once(' ')?;
        let base = usize::from_str_radix(base, 16).ok()?;
        Some(Self { name: name.into(), base, identity: identity.into() })
    }
}

fn bytes_at(memory: &Range<usize>) -> &'static [u8] {
    // SAFETY: the memory is that of notes in a loaded file, which stay there.
    unsafe { slice::from_raw_parts(with_exposed_provenance(memory.start), memory.len()) }
}

/// Finds the build id among notes: each has the lengths of its name and of its content, its kind,
/// and then both, padded to multiples of four bytes.
fn build_id_in(mut notes: &[u8]) -> Option<String> {
    while let Some((header, rest)) = notes.split_first_chunk::<12>() {
        let number = |at: usize| {
            u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let [name_bytes, bytes] = [number(0) as usize, number(4) as usize];
        let start = name_bytes.checked_next_multiple_of(4)?;
        let end = start.checked_add(bytes)?;
        let (name, content) = (rest.get(..name_bytes)?, rest.get(start..end)?);
        if number(8) == BUILD_ID && name == b"GNU\0" {
            return Some(content.iter().fold(String::new(), |mut text, byte| {
                // Writing to a string does not fail.
                let _done = write!(text, "{byte:02x}");
                text
            }));
        }
        notes = rest.get(end.checked_next_multiple_of(4)?..)?;
    }
    None
}

/// Flags of a segment.
const EXECUTE: u32 = 1;
const WRITE: u32 = 2;

/// Tags of the dynamic section.
const END: i64 = 0;
const CALL_BYTES: i64 = 2;
const STRINGS: i64 = 5;
const SYMBOLS: i64 = 6;
const RELOCATIONS: i64 = 7;
const RELOCATION_BYTES: i64 = 8;
const CALLS: i64 = 23;

/// Number of the section of a symbol that another file defines.
const UNDEFINED: u16 = 0;

/// Kind of the relocation for which the loader copies a variable of a library into the program.
#[cfg(target_arch = "x86_64")]
const COPY: u32 = 5;
#[cfg(not(target_arch = "x86_64"))]
const COPY: u32 = 1024;

/// Kind of the note with the build id.
const BUILD_ID: u32 = 3;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    static mut CHANGED: [u64; 4] = [1, 2, 3, 4];

    #[test]
    fn the_program_has_this_code_and_its_variables() {
        let program = program().expect("a program");
        let code = all as fn() -> Vec<Loaded> as usize;
        assert!(program.has_code(code) && !program.has_code(1));
        let variable = (&raw const CHANGED).addr();
        let parts = program.writable();
        assert!(parts.iter().any(|part| part.contains(&variable)), "{parts:x?}");
        assert!(!program.foreign().iter().any(|part| part.contains(&variable)));
        assert!(!program.description().name.is_empty());
    }

    #[test]
    fn a_program_imports_what_it_uses() {
        let program = program().expect("a program");
        assert!(program.imports(c"dl_iterate_phdr"));
        assert!(!program.imports(c"a_function_that_nobody_has"));
    }

    #[test]
    fn a_build_id_is_found_behind_other_notes() {
        let note = |kind: u32, name: &[u8], content: &[u8]| {
            let mut note = Vec::new();
            for number in [name.len() as u32, content.len() as u32, kind] {
                note.extend(number.to_ne_bytes());
            }
            for part in [name, content] {
                note.extend(part);
                note.resize(note.len().next_multiple_of(4), 0);
            }
            note
        };
        let other = note(1, b"GNU\0", b"12345");
        let wanted = note(3, b"GNU\0", &[0xab, 0x01]);
        assert_eq!(build_id_in(&[&other[..], &wanted].concat()).as_deref(), Some("ab01"));
        assert_eq!(build_id_in(&other), None);
    }

    proptest! {
        #[test]
        fn no_notes_are_trouble(notes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _found = build_id_in(&notes);
        }

        #[test]
        fn a_description_is_the_same_after_it_was_a_line(
            base in any::<usize>(),
            identity in "[0-9a-f]{1,40}",
            name in "[a-z .]{0,20}",
        ) {
            let description = Description { name, base, identity };
            prop_assert_eq!(Description::from_line(&description.to_line()), Some(description));
        }

        #[test]
        fn no_line_is_trouble(line in ".{0,40}") {
            let _found = Description::from_line(&line);
        }
    }
}
