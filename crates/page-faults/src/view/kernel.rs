//! What the kernel offers for seeing accesses: userfaultfd and the scan of written pages. The
//! numbers and structures are those of `linux/userfaultfd.h` and `linux/fs.h`.

use core::ops::Range;
use core::ptr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::options::PAGE_BYTES;

/// A descriptor of userfaultfd, which reports faults by `SIGBUS` on the thread that faulted.
#[derive(Debug)]
pub(super) struct UserFaults(OwnedFd);

impl UserFaults {
    /// Opens userfaultfd with these features, and those of every method.
    pub(super) fn open(features: u64) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
        // SAFETY: the call takes only flags. The descriptor is new, so this value alone owns it.
        let file = unsafe {
            let file = libc::syscall(libc::SYS_userfaultfd, flags);
            if file < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(file as i32)
        };
        let mut api = Api { version: API_VERSION, features: features | FEATURES, ioctls: 0 };
        // SAFETY: the structure is that of the request.
        unsafe { control(file.as_raw_fd(), REQUEST_API, &raw mut api)? };
        Ok(Self(file))
    }

    /// Makes accesses to a range fault: to absent pages, and writes to write-protected pages.
    pub(super) fn register(&self, bytes: Range<usize>) -> io::Result<()> {
        let mode = REGISTER_MISSING | REGISTER_MINOR | REGISTER_WRITE_PROTECT;
        let mut register = Register { range: Bytes::of(&bytes), mode, ioctls: 0 };
        // SAFETY: the structure is that of the request.
        unsafe { control(self.0.as_raw_fd(), REQUEST_REGISTER, &raw mut register) }
    }

    /// Maps the pages of a range that are in the file. Pages that are mapped stay as they are.
    pub(super) fn map(&self, bytes: Range<usize>, is_write_protected: bool) -> io::Result<()> {
        let mode = if is_write_protected { CONTINUE_WRITE_PROTECTED } else { 0 };
        let mut start = bytes.start;
        while start < bytes.end {
            let range = Bytes::of(&(start..bytes.end));
            let mut request = Continue { range, mode, mapped: 0 };
            // SAFETY: the structure is that of the request.
            let result = unsafe { control(self.0.as_raw_fd(), REQUEST_CONTINUE, &raw mut request) };
            // After some pages, the kernel reports their number, and that it has stopped.
            let mapped = usize::try_from(request.mapped).unwrap_or(0);
            match result {
                Ok(()) => start += mapped.max(1),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => start += mapped,
                    Some(libc::EEXIST) => start += PAGE_BYTES,
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Protects a range against writes, or permits them.
    pub(super) fn write_protect(&self, bytes: Range<usize>, is_protected: bool) -> io::Result<()> {
        let mode = if is_protected { WRITE_PROTECT } else { 0 };
        let mut request = WriteProtect { range: Bytes::of(&bytes), mode };
        loop {
            // SAFETY: the structure is that of the request.
            let result =
                unsafe { control(self.0.as_raw_fd(), REQUEST_WRITE_PROTECT, &raw mut request) };
            match result {
                // Another thread changes the mappings of the process.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                result => return result,
            }
        }
    }
}

/// The file by which the kernel reports which pages of this process were written.
#[derive(Debug)]
pub(super) struct PageMap(File);

impl PageMap {
    pub(super) fn open() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(Self)
    }

    /// Calls `report` with each range of mapped bytes that was written since it was mapped or scanned
    /// last, and protects it again.
    pub(super) fn take_written(
        &self,
        bytes: Range<usize>,
        report: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        let scan = Scan {
            flags: SCAN_PROTECTS | SCAN_CHECKS_ASYNCHRONOUS,
            category_mask: PAGE_WRITTEN | PAGE_PRESENT,
            ..Scan::of(bytes)
        };
        self.scan(scan, report)
    }

    /// Calls `report` with each range of bytes that is not mapped.
    pub(super) fn unmapped(
        &self,
        bytes: Range<usize>,
        report: impl FnMut(Range<usize>),
    ) -> io::Result<()> {
        let (category_inverted, category_mask) = (PAGE_PRESENT, PAGE_PRESENT);
        self.scan(Scan { category_inverted, category_mask, ..Scan::of(bytes) }, report)
    }

    fn scan(&self, scan: Scan, mut report: impl FnMut(Range<usize>)) -> io::Result<()> {
        let mut found = [const { Region { start: 0, end: 0, categories: 0 } }; REGIONS_AT_ONCE];
        let mut start = scan.start;
        while start < scan.end {
            let vector = found.as_mut_ptr().expose_provenance() as u64;
            let mut part = Scan { start, vector, vector_length: found.len() as u64, ..scan };
            // SAFETY: the structure is that of the request, and the vector has this length.
            let count =
                unsafe { libc::ioctl(self.0.as_raw_fd(), REQUEST_SCAN as _, &raw mut part) };
            let count = usize::try_from(count).map_err(|_negative| io::Error::last_os_error())?;
            for region in &found[..count.min(found.len())] {
                report(region.start as usize..region.end as usize);
            }
            if part.walk_end <= start {
                return Err(io::Error::other("the scan of pages does not advance"));
            }
            start = part.walk_end;
        }
        Ok(())
    }
}

/// Makes a request.
///
/// # Safety
/// `argument` must point to the structure of the request.
unsafe fn control<T>(file: i32, request: u64, argument: *mut T) -> io::Result<()> {
    // SAFETY: the caller promises this.
    if unsafe { libc::ioctl(file, request as _, argument) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Removes the pages of a range from the view; they stay in the file.
pub(super) fn forget(bytes: Range<usize>) -> io::Result<()> {
    advise(bytes, libc::MADV_DONTNEED)
}

/// Allocates the pages of a range of the frames.
pub(super) fn allocate(bytes: Range<usize>) -> io::Result<()> {
    advise(bytes, libc::MADV_POPULATE_WRITE)
}

fn advise(bytes: Range<usize>, advice: i32) -> io::Result<()> {
    let start = ptr::with_exposed_provenance_mut(bytes.start);
    // SAFETY: the range is in a shared mapping of the view or the frames, whose bytes stay in the
    // file.
    if unsafe { libc::madvise(start, bytes.len(), advice) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Changes the rights of a range of the view.
pub(super) fn protect(bytes: Range<usize>, rights: i32) -> io::Result<()> {
    let start = ptr::with_exposed_provenance_mut(bytes.start);
    // SAFETY: the range is in the mapping of the view, whose accesses may fault.
    if unsafe { libc::mprotect(start, bytes.len(), rights) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[repr(C)]
struct Api {
    version: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Bytes {
    start: u64,
    length: u64,
}

impl Bytes {
    fn of(bytes: &Range<usize>) -> Self {
        Self { start: bytes.start as u64, length: bytes.len() as u64 }
    }
}

#[repr(C)]
struct Register {
    range: Bytes,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Continue {
    range: Bytes,
    mode: u64,
    /// Number of bytes that were mapped, or a negative error number.
    mapped: i64,
}

#[repr(C)]
struct WriteProtect {
    range: Bytes,
    mode: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vector: u64,
    vector_length: u64,
    pages_max: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any: u64,
    return_mask: u64,
}

impl Scan {
    fn of(bytes: Range<usize>) -> Self {
        Self {
            size: size_of::<Self>() as u64,
            flags: 0,
            start: bytes.start as u64,
            end: bytes.end as u64,
            walk_end: 0,
            vector: 0,
            vector_length: 0,
            pages_max: 0,
            category_inverted: 0,
            category_mask: 0,
            category_any: 0,
            return_mask: PAGE_PRESENT,
        }
    }
}

#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Number of ranges that a scan reports at once.
const REGIONS_AT_ONCE: usize = 128;

/// Only faults of user code are handled, so that no privilege is needed.
const USER_MODE_ONLY: i32 = 1;

const API_VERSION: u64 = 0xaa;

/// Missing pages of shared memory, minor faults and write protection of it, and `SIGBUS` instead of
/// a message.
const FEATURES: u64 = 1 << 5 | 1 << 7 | 1 << 10 | 1 << 12;

/// Asynchronous write protection.
pub(super) const FEATURE_ASYNCHRONOUS: u64 = 1 << 15;

const REGISTER_MISSING: u64 = 1 << 0;
const REGISTER_WRITE_PROTECT: u64 = 1 << 1;
const REGISTER_MINOR: u64 = 1 << 2;
const CONTINUE_WRITE_PROTECTED: u64 = 1 << 1;
const WRITE_PROTECT: u64 = 1 << 0;

const PAGE_WRITTEN: u64 = 1 << 1;
const PAGE_PRESENT: u64 = 1 << 3;
const SCAN_PROTECTS: u64 = 1 << 0;
const SCAN_CHECKS_ASYNCHRONOUS: u64 = 1 << 1;

/// Returns the number of a request that reads and writes a structure.
const fn request<T>(kind: u64, number: u64) -> u64 {
    3 << 30 | (size_of::<T>() as u64) << 16 | kind << 8 | number
}

const REQUEST_API: u64 = request::<Api>(0xaa, 0x3f);
const REQUEST_REGISTER: u64 = request::<Register>(0xaa, 0x00);
const REQUEST_WRITE_PROTECT: u64 = request::<WriteProtect>(0xaa, 0x06);
const REQUEST_CONTINUE: u64 = request::<Continue>(0xaa, 0x07);
const REQUEST_SCAN: u64 = request::<Scan>(b'f' as u64, 16);
