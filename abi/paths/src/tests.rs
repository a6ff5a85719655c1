//! Tests what a program sees. The tests call functions of the C library, and this library
//! intercepts the calls.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::ptr;

use libc::{c_char, c_int, size_t};

use crate::standing::answer_by;

const LINK: &str = "/sys/class/infiniband/edge0";
const FOLDER: &str = "/sys/devices/virtual/infiniband/edge0";
const GUID: &str = "/sys/devices/virtual/infiniband/edge0/node_guid";
const NODE: &str = "/dev/infiniband/uverbs0";

/// Replaces `libibverbs.so.1`. There is a device with one file, and a second device whose link
/// leads to a folder of the host.
unsafe extern "C" fn device(
    path: *const c_char,
    text: *mut c_char,
    size: size_t,
    length: *mut size_t,
) -> c_int {
    // SAFETY: the path ends with a zero byte.
    let path = unsafe { CStr::from_ptr(path) }.to_str().unwrap_or_default();
    let (answer, target) = match path.trim_end_matches('/') {
        "/sys/class/infiniband" => (0, "ledge0\nledge1\n"),
        "/sys/class/infiniband/edge0" => (3, "../../devices/virtual/infiniband/edge0"),
        "/sys/class/infiniband/edge1" => (3, "/proc/self"),
        "/sys/class/infiniband/again" => (3, "again"),
        "/sys/devices/virtual/infiniband" => (0, "dedge0\n"),
        FOLDER => (0, "-node_guid\n"),
        GUID => (1, "0123:4567:89ab:cdef\n"),
        "/dev/infiniband" => (0, "cuverbs0\n"),
        NODE => (2, ""),
        "/sys/class/infiniband_of_others" => (-2, ""),
        _ => (-1, ""),
    };
    assert!(target.len() <= size);
    // SAFETY: the buffer has room for the text.
    unsafe {
        ptr::copy_nonoverlapping(target.as_ptr().cast(), text, target.len());
        length.write(target.len());
    }
    // Change `errno`, because the real function may change it too.
    crate::standing::fail(libc::EIO, answer)
}

#[test]
fn a_file_is_readable_but_not_writable() {
    answer_by(device);
    assert_eq!(fs::read_to_string(GUID).expect("it is there"), "0123:4567:89ab:cdef\n");
    assert_eq!(fs::metadata(GUID).expect("it is there").len(), 20);
    for failed in [fs::write(GUID, "x"), fs::OpenOptions::new().append(true).open(GUID).map(drop)] {
        assert_eq!(failed.expect_err("nobody writes it").kind(), ErrorKind::PermissionDenied);
    }
    let absent = fs::read("/sys/class/infiniband/edge0/absent");
    assert_eq!(absent.expect_err("it is not there").kind(), ErrorKind::NotFound);
}

#[test]
fn a_stream_reads_the_same_bytes_as_a_descriptor() {
    answer_by(device);
    let path = CString::new(GUID).expect("no zero in it");
    let mut line = [0; 64];
    // SAFETY: names end with a zero byte, the line has room for the text, and the stream is closed
    // once.
    let text = unsafe {
        let stream = libc::fopen(path.as_ptr(), c"r".as_ptr());
        assert!(!stream.is_null());
        assert!(!libc::fgets(line.as_mut_ptr(), 64, stream).is_null());
        libc::fclose(stream);
        assert!(libc::fopen(path.as_ptr(), c"w".as_ptr()).is_null());
        CStr::from_ptr(line.as_ptr())
    };
    assert_eq!(text, c"0123:4567:89ab:cdef\n");
}

#[test]
fn a_device_is_a_character_device_that_is_opened_to_read_and_write() {
    answer_by(device);
    assert!(fs::metadata(NODE).expect("it is there").file_type().is_char_device());
    let mut opened =
        fs::OpenOptions::new().read(true).write(true).open(NODE).expect("it is opened");
    assert!(opened.metadata().expect("it is open").file_type().is_char_device());
    assert_eq!(opened.read(&mut [0; 8]).expect("nothing is in it"), 0);
    let path = CString::new(NODE).expect("no zero in it");
    // SAFETY: the path ends with a zero byte.
    let access = |mode| unsafe { libc::access(path.as_ptr(), mode) };
    assert_eq!(
        [access(libc::R_OK | libc::W_OK), access(libc::F_OK), access(libc::X_OK)],
        [0, 0, -1]
    );
}

#[test]
fn folders_are_listed() {
    answer_by(device);
    let names: Vec<_> = fs::read_dir("/sys/class/infiniband/")
        .expect("it is there")
        .map(|entry| entry.expect("it is read").file_name())
        .collect();
    assert_eq!(names, ["edge0", "edge1"]);
    assert!(Path::new(LINK).is_dir());
    assert_eq!(fs::read_dir(GUID).expect_err("it is a file").kind(), ErrorKind::NotADirectory);
    let kinds: Vec<_> = ["/sys/class/infiniband", FOLDER]
        .into_iter()
        .flat_map(|path| fs::read_dir(path).expect("it is there"))
        .map(|entry| entry.expect("it is read").file_type().expect("it says so"))
        .map(|kind| (kind.is_symlink(), kind.is_file()))
        .collect();
    assert_eq!(kinds, [(true, false), (true, false), (false, true)]);
}

#[test]
fn links_and_parent_folders_resolve_as_in_the_file_system() {
    answer_by(device);
    let there = Path::new(FOLDER);
    assert_eq!(fs::canonicalize(format!("{LINK}/")).expect("it is there"), there);
    assert_eq!(
        fs::read_link(LINK).expect("a link"),
        Path::new("../../devices/virtual/infiniband/edge0")
    );
    assert!(fs::symlink_metadata(LINK).expect("it is there").is_symlink());
    assert!(fs::symlink_metadata(format!("{LINK}/")).expect("it is there").is_dir());
    assert_eq!(fs::read_link(GUID).expect_err("a file").kind(), ErrorKind::InvalidInput);
    let above = |path: &str| fs::canonicalize(format!("{LINK}/{path}"));
    assert_eq!(above("..").expect("ours"), Path::new("/sys/devices/virtual/infiniband"));
    assert_eq!(above("../../../../../proc/self/./..").expect("the host's"), Path::new("/proc"));
    assert!(fs::read_to_string(format!("{LINK}/../edge0/node_guid")).is_ok());
    // The link of the second device leads to a link of the host, which leads to a folder.
    assert!(fs::read_to_string("/sys/class/infiniband/edge1/status").is_ok());
    assert_eq!(
        fs::canonicalize("/sys/class/infiniband/edge1/..").expect("the host's"),
        Path::new("/proc")
    );
    assert_eq!(
        fs::metadata("/sys/class/infiniband/again/x").expect_err("it leads on").raw_os_error(),
        Some(libc::ELOOP)
    );
    let through_a_file = fs::metadata(format!("{GUID}/x")).expect_err("no folder");
    assert_eq!(through_a_file.kind(), ErrorKind::NotADirectory);
    let opened = fs::OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(LINK);
    assert_eq!(opened.expect_err("a link").raw_os_error(), Some(libc::ELOOP));
}

#[test]
fn paths_may_be_relative_to_the_descriptor_of_a_folder() {
    answer_by(device);
    let folder = fs::File::open("/sys/class/infiniband").expect("it is opened");
    let found = folder.metadata().expect("it is open");
    assert!(found.is_dir());
    assert_eq!(found.ino(), fs::metadata("/sys/class/infiniband").expect("it is there").ino());
    let folder = folder.as_raw_fd();
    // SAFETY: paths end with a zero byte, the buffers have room, and each descriptor is closed
    // once.
    unsafe {
        let mut target = [0; 64];
        let length = libc::readlinkat(folder, c"edge0".as_ptr(), target.as_mut_ptr(), 64);
        assert_eq!(length, 38);
        let mut found = std::mem::zeroed::<libc::stat>();
        let flags = libc::AT_SYMLINK_NOFOLLOW;
        assert_eq!(libc::fstatat(folder, c"edge0".as_ptr(), &raw mut found, flags), 0);
        assert_eq!(found.st_mode & libc::S_IFMT, libc::S_IFLNK);
        assert_eq!(libc::faccessat(folder, c"edge0/node_guid".as_ptr(), libc::R_OK, 0), 0);
        let inner = libc::openat(folder, c"edge0/../edge0".as_ptr(), libc::O_DIRECTORY);
        let copy = libc::dup(inner);
        let read = libc::openat(copy, c"node_guid".as_ptr(), libc::O_RDONLY);
        assert!(read >= 0);
        // From here on, the stream owns the descriptor and closes it.
        let stream = libc::fdopendir(copy);
        assert_eq!(libc::dirfd(stream), copy);
        let names = std::iter::from_fn(|| libc::readdir(stream).as_ref()).count();
        assert_eq!(names, 3, "with . and ..");
        assert_eq!([libc::close(read), libc::close(inner), libc::closedir(stream)], [0; 3]);
        assert_eq!(libc::close(copy), -1);
        let others = fs::File::open("/proc/self").expect("it is opened");
        let status = libc::openat(others.as_raw_fd(), c"status".as_ptr(), libc::O_RDONLY);
        assert_eq!(libc::close(status), 0);
    }
}

/// Sends a request for the client NLDEV over a socket, like a program. Returns the answer.
fn ask(kind: u16, flags: c_int, attributes: &[u8]) -> Vec<u8> {
    let length = 16 + attributes.len() as u32;
    let mut request = length.to_ne_bytes().to_vec();
    request.extend_from_slice(&(5 << 10 | kind).to_ne_bytes());
    request.extend_from_slice(&(flags as u16).to_ne_bytes());
    request.extend_from_slice(&[7, 0, 0, 0, 9, 0, 0, 0]);
    request.extend_from_slice(attributes);
    // SAFETY: the addresses are netlink addresses, the buffer has the given length, and the socket
    // is closed once.
    unsafe {
        let socket = libc::socket(libc::AF_NETLINK, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 20);
        assert!(socket >= 0);
        let mut address = std::mem::zeroed::<libc::sockaddr_nl>();
        address.nl_family = libc::AF_NETLINK as u16;
        let (at, mut room) = ((&raw mut address).cast(), size_of::<libc::sockaddr_nl>() as u32);
        assert_eq!(libc::bind(socket, at, room), 0);
        assert_eq!((libc::getsockname(socket, at, &raw mut room), room), (0, 12));
        let sent = libc::sendto(socket, request.as_ptr().cast(), request.len(), 0, at, room);
        assert_eq!(sent, request.len().cast_signed());
        let length = libc::recv(socket, ptr::null_mut(), 0, libc::MSG_PEEK | libc::MSG_TRUNC);
        let mut answer = vec![0; length.cast_unsigned()];
        address.nl_pid = 1;
        let into = answer.as_mut_ptr().cast();
        assert_eq!(libc::recvfrom(socket, into, answer.len(), 0, at, &raw mut room), length);
        assert_eq!((i32::from(address.nl_family), address.nl_pid), (libc::AF_NETLINK, 0));
        assert_eq!(libc::close(socket), 0);
        answer
    }
}

/// Returns the kinds of the messages in an answer. Panics if a message does not belong to the
/// request.
fn kinds(mut answer: &[u8]) -> Vec<u16> {
    let mut kinds = Vec::new();
    while let Some((header, _)) = answer.split_at_checked(16) {
        assert_eq!(header[8..], [7, 0, 0, 0, 9, 0, 0, 0]);
        kinds.push(u16::from_ne_bytes([header[4], header[5]]));
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        answer = &answer[length.next_multiple_of(4)..];
    }
    kinds
}

#[test]
fn devices_are_reported_by_netlink() {
    answer_by(device);
    let (get, port_get, system_get, done, error) = (1_u16, 5, 6, 3, 2);
    let contains = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|at| at == part);
    let all = ask(get, libc::NLM_F_REQUEST | libc::NLM_F_DUMP, &[]);
    assert_eq!(kinds(&all), [5 << 10 | get, 5 << 10 | get, done]);
    assert!(contains(&all, b"edge0\0") && contains(&all, b"edge1\0"));
    let second = [8, 0, 1, 0, 1, 0, 0, 0];
    let one = ask(get, libc::NLM_F_REQUEST | libc::NLM_F_ACK, &second);
    assert_eq!(kinds(&one), [5 << 10 | get, error]);
    assert!(!contains(&one, b"edge0\0") && contains(&one, b"edge1\0"));
    assert_eq!(kinds(&ask(port_get, libc::NLM_F_REQUEST, &second)), [5 << 10 | port_get]);
    assert_eq!(kinds(&ask(system_get, libc::NLM_F_REQUEST, &[])), [5 << 10 | system_get]);
    // Three requests must get an error: for a missing device, for a port without a device, and of
    // an unknown kind.
    let third = [8, 0, 1, 0, 2, 0, 0, 0];
    for refused in [ask(get, 0, &third), ask(port_get, 0, &[]), ask(99, 0, &[])] {
        assert_eq!(kinds(&refused), [error]);
    }
}

#[test]
fn files_have_no_extended_attributes() {
    answer_by(device);
    let path = CString::new(LINK).expect("no zero in it");
    let mut value = [0_u8; 8];
    // SAFETY: names end with a zero byte, and the buffer has room for a value.
    let length = unsafe {
        let name = c"security.selinux".as_ptr();
        libc::lgetxattr(path.as_ptr(), name, value.as_mut_ptr().cast(), value.len())
    };
    assert_eq!((length, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ENODATA)));
}

#[test]
fn two_paths_to_one_file_have_one_inode_number() {
    answer_by(device);
    let number = |path: &str| {
        let found = fs::metadata(path).expect("it is there");
        (found.dev(), found.ino())
    };
    assert_eq!(number("/sys/class/infiniband"), number("/sys/class/infiniband/"));
    assert_eq!(number(LINK), number(FOLDER));
    assert_ne!(number("/sys/class/infiniband"), number(LINK));
    assert_ne!(number(GUID), number(NODE));
}

#[test]
fn a_folder_is_scanned_with_a_filter_and_in_order() {
    unsafe extern "C" fn is_second(entry: *const libc::dirent) -> c_int {
        // SAFETY: the name ends with a zero byte.
        c_int::from(unsafe { CStr::from_ptr((*entry).d_name.as_ptr()) } == c"edge1")
    }
    unsafe extern "C" {
        fn scandir(
            path: *const c_char,
            list: *mut *mut *mut libc::dirent,
            filter: Option<unsafe extern "C" fn(*const libc::dirent) -> c_int>,
            compare: Option<unsafe extern "C" fn()>,
        ) -> c_int;
    }
    answer_by(device);
    for (filter, first, expected) in
        [(None, c".", 4), (Some(is_second as unsafe extern "C" fn(_) -> _), c"edge1", 1)]
    {
        let mut list = ptr::null_mut();
        // SAFETY: the path ends with a zero byte. The list is freed once, and is not used after
        // that.
        unsafe {
            let path = c"/sys/class/infiniband";
            assert_eq!(scandir(path.as_ptr(), &raw mut list, filter, None), expected);
            assert_eq!(CStr::from_ptr((**list).d_name.as_ptr()), first);
            for at in 0..expected as usize {
                libc::free((*list.add(at)).cast());
            }
            libc::free(list.cast());
        }
    }
}

#[test]
fn every_other_path_reaches_the_host() {
    answer_by(device);
    assert!(fs::read_to_string("/proc/self/status").is_ok());
    assert!(fs::read_dir("/proc/self/fd").is_ok_and(|mut entries| entries.next().is_some()));
    let others = fs::metadata("/sys/class/infiniband_of_others");
    assert_eq!(others.expect_err("no host has it").kind(), ErrorKind::NotFound);
    // SAFETY: the kernel rejects null.
    assert_eq!(unsafe { libc::access(ptr::null(), libc::F_OK) }, -1);
}
