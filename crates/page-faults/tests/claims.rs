//! Claims of ranges. Tests that end a process start this program again as a child process with the
//! name of a *role*.

#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#![expect(clippy::undocumented_unsafe_blocks, reason = "each breaks something on purpose, or asks")]

use std::ffi::{CString, c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::{env, fs, hint, io, process, ptr, thread};

use page_faults::{Access, Fault, FaultHandler, NotInForce, RangeClaim, check};

/// Pages without access at first.
struct Pages {
    start: *mut u8,
    count: usize,
}

unsafe impl Send for Pages {}
unsafe impl Sync for Pages {}

impl Pages {
    fn new(count: usize) -> Self {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let start =
            unsafe { libc::mmap(ptr::null_mut(), count * PAGE, libc::PROT_NONE, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start: start.cast(), count }
    }

    fn range(&self) -> std::ops::Range<usize> {
        let start = self.start.expose_provenance();
        start..start + self.count * PAGE
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.start.cast(), self.count * PAGE) };
    }
}

/// Opens the page of a fault after it has done something.
struct Opener<F> {
    faults: Mutex<Vec<Fault>>,
    first: F,
}

impl<F: Fn() -> bool + Send + Sync + 'static> Opener<F> {
    fn new(first: F) -> Arc<Self> {
        Arc::new(Self { faults: Mutex::new(Vec::new()), first })
    }
}

impl<F: Fn() -> bool + Send + Sync + 'static> FaultHandler for Opener<F> {
    fn on_fault(&self, fault: Fault) -> bool {
        self.faults.lock().unwrap().push(fault);
        (self.first)() && open(fault.address)
    }
}

fn open(address: usize) -> bool {
    let page = ptr::with_exposed_provenance_mut(address & !(PAGE - 1));
    unsafe { libc::mprotect(page, PAGE, libc::PROT_READ | libc::PROT_WRITE) == 0 }
}

#[test]
fn a_handler_learns_the_address_and_the_kind_of_each_access() {
    let pages = Pages::new(2);
    let opener = Opener::new(|| true);
    let _claim = RangeClaim::new(pages.range(), Arc::clone(&opener)).unwrap();
    unsafe {
        assert_eq!(pages.start.add(5).read_volatile(), 0);
        pages.start.add(PAGE + 7).write_volatile(1);
    }
    let start = pages.range().start;
    // The pages are mapped, but without rights.
    let is_forbidden = true;
    let read = Fault { address: start + 5, access: Access::Read, is_forbidden };
    let write = Fault { address: start + PAGE + 7, access: Access::Write, is_forbidden };
    assert_eq!(*opener.faults.lock().unwrap(), [read, write]);
}

#[test]
fn a_handler_may_use_much_stack_although_the_thread_has_a_small_alternate_one() {
    fn deep(depth: usize) -> usize {
        let room = hint::black_box([depth; 128]);
        if depth == 0 { room[5] } else { deep(depth - 1) + room[7].min(1) }
    }
    let pages = Pages::new(1);
    // 256 frames of more than a KiB; the alternate stack of a thread has some 8 KiB.
    let claim = RangeClaim::new(pages.range(), Opener::new(|| deep(256) == 256));
    let _claim = claim.unwrap();
    let start = pages.range().start;
    let alternate = thread::spawn(move || {
        let stack = || unsafe {
            let mut stack: libc::stack_t = std::mem::zeroed();
            libc::sigaltstack(ptr::null(), &raw mut stack);
            (stack.ss_sp.addr(), stack.ss_size, stack.ss_flags)
        };
        let before = stack();
        unsafe { ptr::with_exposed_provenance_mut::<u8>(start).write_volatile(1) };
        assert_eq!(stack(), before, "the alternate stack is there again");
        before.0
    });
    assert_ne!(alternate.join().unwrap(), 0, "the thread has an alternate stack");
}

#[test]
fn a_handler_may_fault_itself() {
    let (outer, inner) = (Pages::new(1), Pages::new(1));
    let inside = inner.range().start;
    let _inner = RangeClaim::new(inner.range(), Opener::new(|| true)).unwrap();
    let touch = move || unsafe {
        ptr::with_exposed_provenance_mut::<u8>(inside).write_volatile(3);
        true
    };
    let _outer = RangeClaim::new(outer.range(), Opener::new(touch)).unwrap();
    unsafe {
        outer.start.write_volatile(4);
        assert_eq!(inner.start.read_volatile(), 3);
    }
}

#[test]
fn a_handler_does_not_change_the_error_number_and_the_registers() {
    let pages = Pages::new(1);
    let spoil = || unsafe {
        *libc::__errno_location() = libc::EBADF;
        let floats = hint::black_box([1.5_f64, 2.5, 3.5, 4.5]);
        hint::black_box(floats.map(f64::sqrt));
        true
    };
    let _claim = RangeClaim::new(pages.range(), Opener::new(spoil)).unwrap();
    let factors: Vec<f64> = (0..8).map(f64::from).collect();
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    let byte = unsafe { pages.start.read_volatile() };
    assert_eq!(io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
    let sum: f64 = factors.iter().map(|factor| factor * f64::from(byte + 1)).sum();
    assert!((sum - 28.0).abs() < 1e-9);
}

#[test]
fn the_end_of_a_claim_waits_for_its_handler() {
    let pages = Pages::new(1);
    let steps = Arc::new(Mutex::new(Vec::new()));
    let (entered, leave) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let (in_handler, leave_handler) = (Mutex::new(entered.0), Mutex::new(leave.1));
    let noted = Arc::clone(&steps);
    let wait = move || {
        in_handler.lock().unwrap().send(()).unwrap();
        leave_handler.lock().unwrap().recv().unwrap();
        noted.lock().unwrap().push("handled");
        true
    };
    let claim = RangeClaim::new(pages.range(), Opener::new(wait)).unwrap();
    let start = pages.range().start;
    let reader = thread::spawn(move || unsafe {
        ptr::with_exposed_provenance_mut::<u8>(start).read_volatile()
    });
    entered.1.recv().unwrap();
    let noted = Arc::clone(&steps);
    let ender = thread::spawn(move || {
        drop(claim);
        noted.lock().unwrap().push("ended");
    });
    leave.0.send(()).unwrap();
    reader.join().unwrap();
    ender.join().unwrap();
    assert_eq!(*steps.lock().unwrap(), ["handled", "ended"]);
}

#[test]
fn an_empty_range_is_refused() {
    for range in [0x10000..0x10000, 0..4096, 64..128] {
        let refused = RangeClaim::new(range, Opener::new(|| true));
        assert!(refused.is_err_and(|error| error.to_string().contains("empty")));
    }
}

#[test]
fn a_fault_that_the_handler_refuses_gets_the_signal() {
    assert_eq!(play("refuse").signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_fault_after_the_end_of_the_claim_gets_the_signal() {
    assert_eq!(play("end the claim").signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_handler_of_the_program_gets_other_faults_and_hides_claims_if_it_is_installed_later() {
    assert_eq!(play("have a handler before").code(), Some(FINE));
    assert_eq!(play("have a handler later").code(), Some(FINE));
}

#[test]
fn copies_in_shared_objects_use_one_handler() {
    if shared_object().is_none() {
        return println!("skipped: the example `another_handler` is not built");
    }
    assert_eq!(play("share a handler").code(), Some(FINE));
    assert_eq!(play("find a later copy's handler").code(), Some(FINE));
}

/// Runs in the child. Does nothing if this process was started without a role.
#[test]
fn role() {
    let Ok(role) = env::var(ROLE) else { return };
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    let pages = Pages::new(1);
    let claim = |first: fn() -> bool| RangeClaim::new(pages.range(), Opener::new(first)).unwrap();
    match role.as_str() {
        "refuse" => {
            let _claim = claim(|| false);
            unsafe { pages.start.read_volatile() };
        }
        "end the claim" => {
            drop(claim(|| true));
            unsafe { pages.start.read_volatile() };
        }
        "have a handler before" => {
            act(leaving as *const () as usize);
            let _claim = claim(|| true);
            unsafe { pages.start.write_volatile(1) };
            unsafe { (NOWHERE as *const u8).read_volatile() };
        }
        "have a handler later" => {
            assert_eq!(check(), Err(NotInForce::NotInstalled));
            let _claim = claim(|| true);
            assert_eq!(check(), Ok(()));
            act(leaving as *const () as usize);
            let action = leaving as *const () as usize;
            let replaced = NotInForce::Replaced { signal: libc::SIGSEGV, action };
            assert_eq!(check(), Err(replaced));
            unsafe { pages.start.write_volatile(1) };
        }
        "share a handler" => {
            let _claim = claim(|| true);
            let ours = action();
            let copies = ["one", "other"].map(load);
            for copy in [copies[0], copies[1], copies[0]] {
                let page = Pages::new(1);
                assert_eq!(unsafe { copy(page.start) }, 1);
                assert_eq!(action(), ours, "the copy uses the handler that was there");
            }
            unsafe { pages.start.write_volatile(1) };
            process::exit(FINE);
        }
        "find a later copy's handler" => {
            let _claim = claim(|| true);
            act(leaving as *const () as usize);
            // The program's handler is in front, so the copy installs its own in front of it.
            let page = Pages::new(1);
            assert_eq!(unsafe { load("one")(page.start) }, 1);
            assert_eq!(check(), Ok(()), "this copy has joined");
            unsafe { pages.start.write_volatile(1) };
            process::exit(FINE);
        }
        _ => panic!("no role is called {role:?}"),
    }
    panic!("{role:?} has not ended the process");
}

extern "C" fn leaving(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    unsafe { libc::_exit(FINE) }
}

fn act(action: usize) {
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        (new.sa_sigaction, new.sa_flags) = (action, libc::SA_SIGINFO);
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const new, ptr::null_mut()), 0);
    }
}

fn action() -> usize {
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut action);
        action.sa_sigaction
    }
}

/// Returns the shared object with another copy of this crate, if it is built.
fn shared_object() -> Option<PathBuf> {
    let program = env::current_exe().unwrap();
    let built = program.parent()?.parent()?.join("examples/libanother_handler.so");
    built.exists().then_some(built)
}

/// Loads a copy of the shared object and returns its function. The copy has a name of its own, so
/// it is a separate object.
fn load(name: &str) -> unsafe extern "C" fn(*mut u8) -> usize {
    static COPIES: AtomicUsize = AtomicUsize::new(0);
    let number = COPIES.fetch_add(1, Ordering::SeqCst);
    let folder = env::temp_dir().join(format!("ethernot-handlers-{}-{number}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::copy(shared_object().unwrap(), &path).unwrap();
    let c_path = CString::new(path.to_str().unwrap()).unwrap();
    let function = unsafe {
        let object = libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!object.is_null(), "{}", path.display());
        libc::dlsym(object, c"copy_handles_faults_at".as_ptr())
    };
    fs::remove_dir_all(&folder).unwrap();
    assert!(!function.is_null());
    unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut u8) -> usize>(function) }
}

/// Runs a child of this program with a role and returns its exit status.
fn play(role: &str) -> ExitStatus {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "role", "--nocapture", "--test-threads", "1"]).env(ROLE, role);
    let output = command.output().unwrap();
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

const ROLE: &str = "ETHERNOT_TEST_ROLE";

const PAGE: usize = 4096;

/// An address in the lowest page, which is never mapped.
const NOWHERE: usize = 64;

/// Exit status of a child that found everything as expected.
const FINE: c_int = 42;
