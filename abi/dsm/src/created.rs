//! Functions that rank 0 starts on other ranks.
//!
//! The other ranks wait inside of `ethernot_dsm_init` for functions. For each of them, rank 0 writes
//! a message to the shared memory: what it has loaded where, and its global variables.

use std::process;
use std::str;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dsm::{Dsm, DsmSlice};

use crate::failure::{Failure, Result, call};
use crate::image::Variables;
use crate::loaded::{self, Description, Loaded};
use crate::rank::{dsm, leave};

/// Runs a function on a rank that runs none. With the option `creates`, only rank 0 returns from
/// `ethernot_dsm_init`, and all others run the functions of this call. The function finds the global
/// variables of the program as they are on rank 0 now. From then on they are its own. What they
/// point to must be in the region, or a global variable, or a function. `stdout` and other variables
/// of libraries are not copied. Returns as soon as the function begins.
///
/// All ranks must run the same file with its functions at the same addresses. If a program contains
/// a call of this function, the library starts it again before `main`, without address
/// randomization.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_create(function: Option<unsafe extern "C" fn()>) -> Result {
    call(|| {
        let function = function.ok_or_else(|| Failure::null("the function"))?;
        let dsm = dsm()?;
        let mut workers = workers();
        let workers = workers.as_mut().ok_or_else(no_workers)?;
        workers.start(&dsm, function as usize)
    })
}

/// Waits until all functions that `ethernot_dsm_create` has started have returned. Then rank 0 sees
/// what they wrote, and can start others.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_wait_created() -> Result {
    call(|| {
        let dsm = dsm()?;
        let ended: Vec<u64> = {
            let mut workers = workers();
            let workers = workers.as_mut().ok_or_else(no_workers)?;
            workers.take_busy().map(Place::ended).collect()
        };
        // The lock is free, because the functions may need another thread of this rank.
        ended.into_iter().try_for_each(|ended| Ok(dsm.take(ended)?))
    })
}

/// Begins to use functions of rank 0. Returns on rank 0 only; other ranks run the functions, and end
/// when rank 0 leaves.
pub(crate) fn begin() -> std::result::Result<(), Failure> {
    let dsm = dsm()?;
    let board = dsm.alloc::<u64>(dsm.size() * Place::WORDS)?.as_ptr().addr();
    let place = |rank: usize| Place { board, rank };
    if dsm.rank() > 0 {
        ROLE.store(WORKER, Ordering::Release);
        let rank = dsm.rank();
        drop(dsm);
        serve(place(rank));
    }
    let idle = (1..dsm.size()).map(place).collect();
    *workers() = Some(Workers { idle, busy: Vec::new(), room: None });
    ROLE.store(CREATOR, Ordering::Release);
    Ok(())
}

/// Waits until all functions have returned, and ends the other ranks, if they run functions.
pub(crate) fn end() -> std::result::Result<(), Failure> {
    match ROLE.load(Ordering::Acquire) {
        CREATOR => {}
        WORKER => {
            let text = "a function of ethernot_dsm_create returns instead; rank 0 ends all ranks";
            return Err(Failure::new(Result::Misuse, text));
        }
        _ => return Ok(()),
    }
    let dsm = dsm()?;
    // None if a call before has ended them.
    let Some(mut former) = workers().take() else { return Ok(()) };
    let busy: Vec<Place> = former.take_busy().collect();
    busy.into_iter().try_for_each(|place| dsm.take(place.ended()))?;
    for place in former.idle {
        place.words(&dsm)?.set(FUNCTION, 0);
        dsm.give(place.begun(), 1)?;
    }
    Ok(())
}

/// Checks that all ranks of the program can make a call together.
pub(crate) fn check_together(call: &str, instead: &str) -> std::result::Result<(), Failure> {
    if ROLE.load(Ordering::Acquire) == EQUAL {
        return Ok(());
    }
    let text = format!(
        "{call} waits for all ranks, but with the option creates some may run no function; {instead}"
    );
    Err(Failure::new(Result::Misuse, text))
}

/// Checks that this rank may allocate memory that all ranks know.
pub(crate) fn check_allocates() -> std::result::Result<(), Failure> {
    if ROLE.load(Ordering::Acquire) != WORKER {
        return Ok(());
    }
    let text = "with the option creates, only rank 0 allocates; use ethernot_dsm_alloc_local, or allocate before \
                ethernot_dsm_create";
    Err(Failure::new(Result::Misuse, text))
}

/// The words by which rank 0 notifies another rank of a function. Their addresses also name the
/// semaphores of that rank.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// Address of the words of all ranks.
    board: usize,
    rank: usize,
}

impl Place {
    const WORDS: usize = 4;

    fn words<'a>(&self, dsm: &'a Dsm) -> std::result::Result<DsmSlice<'a, u64>, Failure> {
        Ok(dsm.slice_at(self.address(0), Self::WORDS)?)
    }

    /// Semaphore: there is a function to run.
    const fn begun(self) -> u64 {
        self.address(FUNCTION) as u64
    }

    /// Semaphore: the message has been read.
    const fn read(self) -> u64 {
        self.address(MESSAGE) as u64
    }

    /// Semaphore: a function has returned.
    const fn ended(self) -> u64 {
        self.address(MESSAGE_WORDS) as u64
    }

    const fn address(self, word: usize) -> usize {
        self.board + (self.rank * Self::WORDS + word) * size_of::<u64>()
    }
}

/// What rank 0 knows of the other ranks.
#[derive(Debug)]
struct Workers {
    idle: Vec<Place>,
    busy: Vec<Place>,
    /// Address and number of words of the memory for messages.
    room: Option<(usize, usize)>,
}

impl Workers {
    /// Starts a function on a rank that runs none. Waits until the rank has read the message.
    fn start(&mut self, dsm: &Dsm, function: usize) -> std::result::Result<(), Failure> {
        if self.idle.is_empty() {
            let text = format!(
                "each of the {} other ranks runs a function; start the program on more ranks, or call \
                 ethernot_dsm_wait_created first",
                self.busy.len()
            );
            return Err(Failure::new(Result::Misuse, text));
        }
        let loaded = loaded::all();
        check_code(&loaded, function)?;
        let message = message(&loaded)?;
        let room = match self.room {
            Some((address, words)) if words >= message.len() => {
                dsm.slice_at::<u64>(address, words)?
            }
            _ => dsm.alloc::<u64>(message.len())?,
        };
        self.room = Some((room.as_ptr().addr(), room.len()));
        room.slice(..message.len()).copy_from(&message);
        let place = self.idle.remove(0);
        let words = place.words(dsm)?;
        words.set(FUNCTION, function as u64);
        words.set(MESSAGE, room.as_ptr().addr() as u64);
        words.set(MESSAGE_WORDS, message.len() as u64);
        dsm.give(place.begun(), 1)?;
        dsm.take(place.read())?;
        self.busy.push(place);
        Ok(())
    }

    /// Counts the ranks that run functions as idle, and returns them. A function that is started on
    /// one of them begins after the present one.
    fn take_busy(&mut self) -> impl Iterator<Item = Place> + use<> {
        let busy = std::mem::take(&mut self.busy);
        self.idle.extend(&busy);
        self.idle.sort_by_key(|place| place.rank);
        busy.into_iter()
    }
}

/// Runs functions, and ends the process.
fn serve(place: Place) -> ! {
    let failure = match run_functions(place).and_then(|()| leave()) {
        Ok(()) => process::exit(0),
        Err(failure) => failure,
    };
    eprintln!("ethernot: rank {}: {}", place.rank, failure.text);
    process::exit(FAILED)
}

/// Runs functions until rank 0 ends this.
fn run_functions(place: Place) -> std::result::Result<(), Failure> {
    let dsm = dsm()?;
    loop {
        dsm.take(place.begun())?;
        let words = place.words(&dsm)?;
        let function = words.get(FUNCTION) as usize;
        if function == 0 {
            return Ok(());
        }
        let (address, count) = (words.get(MESSAGE) as usize, words.get(MESSAGE_WORDS) as usize);
        // This fails if the message is not in the region, so its length is limited.
        let shared = dsm.slice_at::<u64>(address, count)?;
        let mut message = vec![0; count];
        shared.copy_to(&mut message);
        let loaded = loaded::all();
        let variables = agreed(&loaded, &message)?;
        check_code(&loaded, function)?;
        // SAFETY: the program and the libraries are the same as on rank 0, at the same addresses.
        // This process runs no other thread of the program, because it waits in `ethernot_dsm_init`
        // since it has joined.
        let taken = loaded.first().map(|it| unsafe { Variables::of(it).take(&variables) });
        taken.transpose().map_err(|error| Failure::new(Result::Invalid, error.to_string()))?;
        dsm.give(place.read(), 1)?;
        let function = std::ptr::with_exposed_provenance::<()>(function);
        // SAFETY: the program on rank 0 has given this function, and its code is the same here.
        unsafe { std::mem::transmute::<*const (), unsafe extern "C" fn()>(function)() };
        dsm.give(place.ended(), 1)?;
    }
}

/// Returns a message for another rank: the length of a text in bytes, the text with a line for each
/// loaded file, and the variables of the program.
fn message(loaded: &[Loaded]) -> std::result::Result<Vec<u64>, Failure> {
    let lines = loaded.iter().map(|it| it.description().to_line());
    let text = lines.collect::<Vec<_>>().join("\n");
    let program = loaded.first().ok_or_else(|| {
        Failure::new(Result::System, "the loader does not say where the program is")
    })?;
    let mut bytes = Vec::from((text.len() as u64).to_ne_bytes());
    bytes.extend(text.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes.extend(Variables::of(program).to_bytes());
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// Checks that this rank has loaded what rank 0 has loaded, at the same addresses. Returns the
/// variables in the message.
fn agreed(loaded: &[Loaded], message: &[u64]) -> std::result::Result<Vec<u8>, Failure> {
    let broken = || Failure::new(Result::Fault, "the message of rank 0 is broken");
    let (text_bytes, rest) = message.split_first().ok_or_else(broken)?;
    let rest: Vec<u8> = rest.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let text_bytes = usize::try_from(*text_bytes).map_err(|_| broken())?;
    let text = rest.get(..text_bytes).and_then(|text| str::from_utf8(text).ok());
    let theirs = text.ok_or_else(broken)?.lines().map(Description::from_line);
    let theirs: Option<Vec<_>> = theirs.collect();
    let own: Vec<_> = loaded.iter().map(Loaded::description).collect();
    if let Some(difference) = difference(&own, &theirs.ok_or_else(broken)?) {
        return Err(Failure::new(Result::Invalid, difference));
    }
    Ok(rest.get(text_bytes.next_multiple_of(8)..).ok_or_else(broken)?.to_vec())
}

/// Returns how the files of this rank differ from those of rank 0. The first of each is the program.
/// A library that only one of them has makes no difference.
fn difference(own: &[Description], theirs: &[Description]) -> Option<String> {
    let (program, other) = (own.first()?, theirs.first()?);
    if program.identity != other.identity {
        return Some(format!(
            "the program {} (build id {}) is not {} of rank 0 (build id {}); ethernot_dsm_create needs the same file on \
             all ranks",
            program.name, program.identity, other.name, other.identity
        ));
    }
    let pairs = own.iter().skip(1).filter_map(|own| {
        let other = theirs.iter().skip(1).find(|other| other.name == own.name)?;
        Some((own, other))
    });
    for (own, other) in [(program, other)].into_iter().chain(pairs) {
        if own.identity != other.identity {
            return Some(format!(
                "the library {} (build id {}) is another version than on rank 0 (build id {}); ethernot_dsm_create needs \
                 the same libraries on all ranks",
                own.name, own.identity, other.identity
            ));
        }
        if own.base != other.base {
            return Some(format!(
                "{} is at {:#x}, but at {:#x} on rank 0, so addresses are randomized: either the kernel refuses to \
                 switch this off (containers may forbid the system call personality), or the program does not call \
                 ethernot_dsm_create itself; start the ranks by `setarch -R`",
                own.name, own.base, other.base
            ));
        }
    }
    None
}

fn check_code(loaded: &[Loaded], function: usize) -> std::result::Result<(), Failure> {
    if loaded.iter().any(|it| it.has_code(function)) {
        return Ok(());
    }
    let text = format!(
        "the function at {function:#x} is in no program or library of this rank; load libraries before ethernot_dsm_init"
    );
    Err(Failure::new(Result::Invalid, text))
}

fn no_workers() -> Failure {
    let text = "only rank 0 creates functions, if all ranks have set the option creates of ethernot_dsm_init";
    Failure::new(Result::Misuse, text)
}

fn workers() -> MutexGuard<'static, Option<Workers>> {
    WORKERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The other ranks, on rank 0 with the option `creates`.
static WORKERS: Mutex<Option<Workers>> = Mutex::new(None);

/// What this rank does.
static ROLE: AtomicU8 = AtomicU8::new(EQUAL);

/// All ranks run the program.
const EQUAL: u8 = 0;
/// This rank runs the program, and starts functions on others.
const CREATOR: u8 = 1;
/// This rank runs functions.
const WORKER: u8 = 2;

/// The words of a [`Place`]: address of the function, or 0 if the rank ends; address of the message;
/// its length in words.
const FUNCTION: usize = 0;
const MESSAGE: usize = 1;
const MESSAGE_WORDS: usize = 2;

/// Exit status of a rank that has failed, as for other failures of the library.
const FAILED: i32 = 70;

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, base: usize, identity: &str) -> Description {
        Description { name: name.into(), base, identity: identity.into() }
    }

    #[test]
    fn a_message_says_what_was_loaded_and_has_the_variables() {
        let loaded = loaded::all();
        let message = message(&loaded).expect("a message");
        let variables = agreed(&loaded, &message).expect("the process is like itself");
        assert!(!variables.is_empty());
        let broken = agreed(&loaded, &message[..2]).expect_err("a part of it");
        assert_eq!(broken.result, Result::Fault);
        assert_eq!(agreed(&loaded, &[]).expect_err("nothing").result, Result::Fault);
        assert_eq!(agreed(&loaded, &[u64::MAX]).expect_err("no text").result, Result::Fault);
    }

    #[test]
    fn another_file_and_another_address_are_differences_and_another_set_of_libraries_is_none() {
        let own = [file("a", 1, "ab"), file("libc", 2, "cd"), file("own", 3, "ef")];
        assert_eq!(difference(&own, &own), None);
        let mut other = own.clone();
        other[2] = file("other", 9, "99");
        assert_eq!(difference(&own, &other), None);
        other[1].base = 7;
        assert!(
            difference(&own, &other).is_some_and(|it| it.contains("libc is at 0x2, but at 0x7"))
        );
        other[1].identity = "dd".into();
        assert!(difference(&own, &other).is_some_and(|it| it.contains("the library libc")));
        other[0].identity = "bb".into();
        let text = difference(&own, &other).expect("another program");
        assert!(text.contains("build id ab") && text.contains("build id bb"), "{text}");
    }

    #[test]
    fn an_address_without_code_is_refused() {
        let loaded = loaded::all();
        assert!(check_code(&loaded, no_workers as fn() -> Failure as usize).is_ok());
        let failure = check_code(&loaded, 16).expect_err("no code");
        assert!(failure.text.contains("0x10"), "{}", failure.text);
    }
}
