//! Tests of signals that do not concern this crate, each in its own process.
//!
//! A test starts this program again as a child process, with the name of a *role*. The child
//! performs the role until the role or the process ends.

#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#![expect(clippy::undocumented_unsafe_blocks, reason = "each breaks something on purpose, or asks")]

use std::ffi::{CString, c_int, c_void};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{env, fs, hint, process, ptr, thread};

use mem::FaultGuard;

#[test]
fn an_unrelated_fault_still_ends_the_process() {
    assert_eq!(play("touch").signal(), Some(libc::SIGSEGV));
    assert_eq!(play("touch with the default action").signal(), Some(libc::SIGSEGV));
    assert_eq!(play("touch behind the end of a file").signal(), Some(libc::SIGBUS));
}

#[test]
fn a_fault_that_is_ignored_still_ends_the_process() {
    assert_eq!(play("touch with the signal ignored").signal(), Some(libc::SIGSEGV));
}

#[test]
fn a_signal_sent_by_another_process_keeps_its_effect() {
    assert_eq!(play("be sent the signal with the default action").signal(), Some(libc::SIGSEGV));
    assert_eq!(play("be sent the signal while it is ignored").code(), Some(FINE));
}

#[test]
fn an_earlier_handler_gets_unrelated_faults() {
    assert_eq!(play("touch with a full handler").code(), Some(FINE));
    assert_eq!(play("touch with a plain handler").code(), Some(FINE));
    assert_eq!(play("touch twice with a handler for once").signal(), Some(libc::SIGSEGV));
}

#[test]
fn an_earlier_handler_keeps_its_mask_and_its_stack() {
    assert_eq!(play("touch with a handler that looks around").code(), Some(FINE));
}

#[test]
fn a_handler_installed_later_is_respected() {
    assert_eq!(play("replace the handler and put it back").code(), Some(FINE));
}

#[test]
fn copies_in_several_shared_objects_catch_their_faults_in_any_load_order() {
    if shared_object().is_none() {
        return println!("skipped: the example `another_copy` is not built");
    }
    assert_eq!(play("be caught by several copies").code(), Some(FINE));
    assert_eq!(play("have a handler between two copies").code(), Some(FINE));
}

#[test]
fn a_stack_overflow_is_still_reported() {
    let output = start("overflow");
    assert_eq!(output.status.signal(), Some(libc::SIGABRT));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("overflowed its stack"), "{text}");
}

/// Runs in the child. Does nothing if this process was started without a role.
#[test]
fn role() {
    let Ok(role) = env::var(ROLE) else { return };
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    match role.as_str() {
        "touch" => {
            catch();
            touch();
        }
        "touch with the default action" => {
            act(libc::SIG_DFL, 0);
            catch();
            touch();
        }
        "touch behind the end of a file" => {
            catch();
            touch_behind_file();
        }
        "touch with the signal ignored" => {
            act(libc::SIG_IGN, 0);
            catch();
            touch();
        }
        "be sent the signal with the default action" => {
            act(libc::SIG_DFL, 0);
            catch();
            unsafe { libc::kill(process::id().cast_signed(), libc::SIGSEGV) };
            // The kernel may deliver the signal to another thread, after a moment. So wait until
            // the signal ends the process.
            loop {
                thread::park();
            }
        }
        "be sent the signal while it is ignored" => {
            act(libc::SIG_IGN, 0);
            catch();
            unsafe { libc::raise(libc::SIGSEGV) };
            catch();
            process::exit(FINE);
        }
        "touch with a full handler" => {
            act(full as *const () as usize, libc::SA_SIGINFO);
            catch();
            touch();
        }
        "touch with a plain handler" => {
            act(plain as *const () as usize, 0);
            catch();
            touch();
        }
        "touch twice with a handler for once" => {
            act(once as *const () as usize, libc::SA_RESETHAND);
            catch();
            touch();
        }
        "touch with a handler that looks around" => {
            let stack_end = 0;
            STACK_NEAR.store((&raw const stack_end).addr(), Ordering::SeqCst);
            act(looking_around as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER);
            catch();
            touch();
        }
        "replace the handler and put it back" => replace(),
        "be caught by several copies" => {
            let copies = ["one", "other"].map(load);
            let first = copies[0];
            assert!(thread::spawn(move || first()).join().unwrap());
            thread::spawn(catch).join().unwrap();
            let second = copies[1];
            // Use a new thread for each check, because a thread always checks at its first call.
            for catches in [second, first, second] {
                assert!(thread::spawn(move || catches()).join().unwrap());
                thread::spawn(catch).join().unwrap();
            }
            act_as_before_and_touch();
        }
        "have a handler between two copies" => {
            catch();
            act(full as *const () as usize, libc::SA_SIGINFO);
            let copy = load("one");
            assert!(thread::spawn(move || copy()).join().unwrap());
            // The handler of the copy is in front of the program's, so this copy uses it, too.
            thread::spawn(catch).join().unwrap();
            touch();
        }
        "overflow" => {
            catch();
            let depth = thread::spawn(|| overflow(1)).join();
            println!("{depth:?}");
        }
        _ => panic!("no role is called {role:?}"),
    }
    panic!("{role:?} has not ended the process");
}

fn replace() {
    catch();
    let ours = act(plain as *const () as usize, 0);
    let is_refused = thread::spawn(|| FaultGuard::acquire().is_none()).join().unwrap();
    assert!(is_refused, "the program's handler is in force");
    unsafe { libc::sigaction(libc::SIGSEGV, &raw const ours, ptr::null_mut()) };
    thread::spawn(catch).join().unwrap();
    process::exit(FINE);
}

/// Checks that a fault which no handler recognizes passes through all handlers and then ends the
/// process.
fn act_as_before_and_touch() -> ! {
    // The fault ends the child of the fork.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            touch();
            libc::_exit(1);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        let ended = libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV;
        process::exit(if ended { FINE } else { 1 })
    }
}

/// Returns the shared object with another copy of this crate, if it is built.
fn shared_object() -> Option<PathBuf> {
    let program = env::current_exe().unwrap();
    let built = program.parent()?.parent()?.join("examples/libanother_copy.so");
    built.exists().then_some(built)
}

/// Loads a copy of the shared object and returns its function. The copy has a name of its own, so
/// it is a separate object.
fn load(name: &str) -> extern "C" fn() -> bool {
    let folder = env::temp_dir().join(format!("ethernot-copies-{}", process::id()));
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join(name);
    fs::copy(shared_object().unwrap(), &path).unwrap();
    let c_path = CString::new(path.to_str().unwrap()).unwrap();
    let function = unsafe {
        let object = libc::dlopen(c_path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!object.is_null(), "{}", path.display());
        libc::dlsym(object, c"copy_catches_a_fault".as_ptr())
    };
    fs::remove_dir_all(&folder).unwrap();
    assert!(!function.is_null());
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> bool>(function) }
}

/// Makes this crate catch a fault.
fn catch() {
    let guard = FaultGuard::acquire().expect("nothing else is installed behind it");
    let mut byte = 1;
    assert_eq!(unsafe { guard.copy(&raw mut byte, NOWHERE as *const u8, 1) }, 0);
}

fn touch() {
    unsafe { (NOWHERE as *const u8).read_volatile() };
}

fn touch_behind_file() {
    unsafe {
        let file = libc::memfd_create(c"empty".as_ptr(), 0);
        let start = libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_SHARED, file, 0);
        start.cast::<u8>().read_volatile();
    }
}

#[expect(unconditional_recursion, reason = "that is what it is for")]
fn overflow(depth: u64) -> u64 {
    let room = hint::black_box([depth; 100]);
    overflow(depth + 1) + room[50]
}

/// Sets the action for `SIGSEGV`, with `SIGUSR1` blocked in the handler. Returns the previous
/// action.
fn act(action: usize, flags: c_int) -> libc::sigaction {
    unsafe {
        let mut new: libc::sigaction = std::mem::zeroed();
        new.sa_sigaction = action;
        new.sa_flags = flags;
        libc::sigaddset(&raw mut new.sa_mask, libc::SIGUSR1);
        let mut old = std::mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGSEGV, &raw const new, &raw mut old), 0);
        old
    }
}

extern "C" fn full(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let address = unsafe { (*info).si_addr() } as usize;
    let is_right = signal == libc::SIGSEGV && address == NOWHERE && !context.is_null();
    unsafe { libc::_exit(if is_right { FINE } else { 1 }) }
}

extern "C" fn plain(signal: c_int) {
    unsafe { libc::_exit(if signal == libc::SIGSEGV { FINE } else { 1 }) }
}

/// Returns at the first call, so that the fault repeats. Exits at the second call.
extern "C" fn once(_: c_int) {
    static CALLS: AtomicUsize = AtomicUsize::new(0);
    if CALLS.fetch_add(1, Ordering::SeqCst) > 0 {
        unsafe { libc::_exit(1) }
    }
}

extern "C" fn looking_around(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let here = 0;
    // If the handler's stack frame is within 64 KiB of `STACK_NEAR`, the handler runs on the
    // thread's own stack, because no other stack is so near.
    let distance = STACK_NEAR.load(Ordering::SeqCst).abs_diff((&raw const here).addr());
    let is_right = unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut mask);
        distance < 64 << 10
            && libc::sigismember(&raw const mask, libc::SIGUSR1) == 1
            && libc::sigismember(&raw const mask, libc::SIGSEGV) == 0
    };
    unsafe { libc::_exit(if is_right { FINE } else { 1 }) }
}

/// Runs a child of this program with a role and returns its exit status.
fn play(role: &str) -> ExitStatus {
    let output = start(role);
    println!("{}", String::from_utf8_lossy(&output.stderr));
    output.status
}

fn start(role: &str) -> Output {
    let program = env::current_exe().unwrap();
    let mut command = Command::new(program);
    command.args(["--exact", "role", "--nocapture", "--test-threads", "1"]).env(ROLE, role);
    command.output().unwrap()
}

const ROLE: &str = "ETHERNOT_TEST_ROLE";

/// An address in the lowest page, which is never mapped.
const NOWHERE: usize = 64;

/// Exit status of a child that found everything as expected.
const FINE: c_int = 42;

static STACK_NEAR: AtomicUsize = AtomicUsize::new(0);
