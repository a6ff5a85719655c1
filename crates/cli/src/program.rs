//! Finds programs, and checks whether libraries can be preloaded into them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{AccessFlags, access, getegid, geteuid, getuid};
use object::elf::{self, FileHeader64};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, ReadCache};
use thiserror::Error;

use crate::surroundings::Wanted;

/// Why libraries cannot be preloaded into a program.
#[derive(Debug, Error)]
pub(crate) enum ProgramError {
    #[error("cannot find the program {}; name the file of the program, or add its folder to PATH", .0.display())]
    NotFound(PathBuf),
    #[error(
        "{option} is neither an option nor a program; `ethernot run --help` lists the options, and \
         the program comes after `--`", option = .0.display()
    )]
    NoOption(PathBuf),
    #[error("{} is a folder, not a program", .0.display())]
    Folder(PathBuf),
    #[error("no permission to run {}; make the file executable with chmod +x, or run a copy", .0.display())]
    NotPermitted(PathBuf),
    #[error("read {}: {}", .0.display(), .1)]
    Unreadable(PathBuf, io::Error),
    #[error(
        "{} is neither a program nor a script with a line `#!`; put its interpreter first, as in \
         `ethernot run -- sh {}`", .0.display(), .0.display()
    )]
    NoFormat(PathBuf),
    #[error("the interpreter {} of {} does not exist", .interpreter.display(), .program.display())]
    NoInterpreter { program: PathBuf, interpreter: PathBuf },
    #[error("{} is for another kind of processor, {found}, but the libraries are for {ours}", .program.display())]
    OtherArchitecture { program: PathBuf, found: String, ours: &'static str },
    #[error(
        "{} is statically linked{}: no library can be preloaded into it. {}. If it only starts other programs, set \
         the variables for these: eval \"$(ethernot env{})\"",
        .program.display(),
        if *.is_go { ", as Go programs are without cgo" } else { "" },
        remedy_of_static(*.wanted, *.is_go),
        if .wanted.sockets { " --sockets" } else { "" },
    )]
    Static { program: PathBuf, is_go: bool, wanted: Wanted },
    #[error("{} uses no C library: no library can be preloaded into it", .0.display())]
    NoLibrary(PathBuf),
    #[error(
        "{} is a program for {}, but the libraries are for the GNU C library. Build the program for the GNU C library, \
         or run it in a container that has this library", .program.display(),
        if *.is_musl { "musl".to_owned() } else { format!("another loader, {}", .loader.display()) }
    )]
    OtherLoader { program: PathBuf, loader: PathBuf, is_musl: bool },
    #[error(
        "{} {how} when it starts, so the loader preloads no libraries. Run ethernot itself with these rights, as in \
         `sudo ethernot run -- …`, or run a copy of the program without them", .program.display()
    )]
    GainsRights { program: PathBuf, how: &'static str },
    #[error("{}: too many levels of scripts; {} has an interpreter that is itself a script, and so \
             on without an end", .0.display(), .0.display())]
    TooManyScripts(PathBuf),
}

/// Returns the remedy for a program into which no library can be preloaded.
fn remedy_of_static(wanted: Wanted, is_go: bool) -> &'static str {
    match (wanted.device, is_go) {
        (true, true) => "Build it with a shared libibverbs (CGO_ENABLED=1)",
        (true, false) => "Build it with a shared libibverbs",
        (false, true) => {
            "Go calls the kernel itself, so its connections stay on TCP: run the program without ethernot; peers that \
             run under ethernot can still connect to it"
        }
        (false, false) => {
            "Build it with the shared C library, or run it without ethernot; peers that run under ethernot can still \
             connect to it"
        }
    }
}

/// A program that was found and checked.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    /// Warnings about possible problems.
    pub(crate) warnings: Vec<String>,
}

impl Program {
    /// Finds the program like a shell, and checks whether libraries can be preloaded into it.
    pub(crate) fn find(
        name: &OsStr,
        search: Option<&OsStr>,
        wanted: Wanted,
    ) -> Result<Self, ProgramError> {
        let path = find(name, search)?;
        let mut look = Look { search, wanted, warnings: Vec::new() };
        look.look_at(&path, SCRIPTS_MAX)?;
        Ok(Self { path, warnings: look.warnings })
    }
}

/// Returns the path of the program: the name itself if it contains a slash, otherwise the file in
/// the first folder that has one.
fn find(name: &OsStr, search: Option<&OsStr>) -> Result<PathBuf, ProgramError> {
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return may_run(&path).map(|()| path);
    }
    let folders = search.map_or_else(|| OsString::from(USUAL_PATH), OsStr::to_owned);
    let mut refusal = if name.as_bytes().starts_with(b"-") {
        ProgramError::NoOption(PathBuf::from(name))
    } else {
        ProgramError::NotFound(PathBuf::from(name))
    };
    if name.is_empty() {
        return Err(refusal);
    }
    for folder in std::env::split_paths(&folders) {
        // An empty entry means the current folder.
        let folder = if folder.as_os_str().is_empty() { PathBuf::from(".") } else { folder };
        let path = folder.join(name);
        match may_run(&path) {
            Ok(()) => return Ok(path),
            Err(error @ ProgramError::NotPermitted(_)) => refusal = error,
            Err(_) => {}
        }
    }
    Err(refusal)
}

fn may_run(path: &Path) -> Result<(), ProgramError> {
    let found = fs::metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => ProgramError::NotPermitted(path.into()),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
            ProgramError::NotFound(path.into())
        }
        _ => ProgramError::Unreadable(path.into(), error),
    })?;
    if found.is_dir() {
        return Err(ProgramError::Folder(path.into()));
    }
    access(path, AccessFlags::X_OK).map_err(|_| ProgramError::NotPermitted(path.into()))
}

/// Checks programs and their interpreters.
struct Look<'a> {
    /// The folders to search, in the form of `PATH`.
    search: Option<&'a OsStr>,
    wanted: Wanted,
    warnings: Vec<String>,
}

impl Look<'_> {
    /// Checks whether libraries can be preloaded into the program or into its interpreter.
    fn look_at(&mut self, path: &Path, scripts_left: u32) -> Result<(), ProgramError> {
        let unreadable = |error| ProgramError::Unreadable(path.into(), error);
        let mut file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let path = path.display();
                self.warnings.push(format!(
                    "{path} has the permission to be run but not to be read, so its kind is unknown"
                ));
                return Ok(());
            }
            Err(error) => return Err(unreadable(error)),
        };
        let mut head = Vec::new();
        (&mut file).take(HEAD_BYTES).read_to_end(&mut head).map_err(unreadable)?;
        if let Some(line) = head.strip_prefix(b"#!") {
            return self.look_at_interpreter(path, line, scripts_left);
        }
        if !head.starts_with(&elf::ELFMAG) {
            return Err(ProgramError::NoFormat(path.into()));
        }
        check_rights(path)?;
        let shape = Shape::read(path, file)?;
        let is_go = shape.is_go;
        shape.check(path, self.wanted)?;
        if is_go && self.wanted.sockets {
            self.warnings.push(format!(
                "{} is written in Go, which calls the kernel itself: its connections stay on TCP",
                path.display()
            ));
        }
        Ok(())
    }

    /// Checks the interpreter in a script's first line, because the libraries are preloaded into
    /// the interpreter.
    fn look_at_interpreter(
        &mut self,
        script: &Path,
        line: &[u8],
        scripts_left: u32,
    ) -> Result<(), ProgramError> {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or_default();
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty())
            .map(|word| OsString::from_vec(word.to_vec()));
        let Some(mut interpreter) = words.next() else {
            return Err(ProgramError::NoFormat(script.into()));
        };
        if Path::new(&interpreter).file_name() == Some(OsStr::new("env")) {
            // `env` may have assignments and options before the name.
            let is_name = |word: &OsString| {
                !word.as_bytes().starts_with(b"-") && !word.as_bytes().contains(&b'=')
            };
            interpreter = words.find(is_name).unwrap_or(interpreter);
        }
        let found = find(&interpreter, self.search).map_err(|_| ProgramError::NoInterpreter {
            program: script.into(),
            interpreter: interpreter.clone().into(),
        })?;
        let Some(left) = scripts_left.checked_sub(1) else {
            return Err(ProgramError::TooManyScripts(script.into()));
        };
        match self.look_at(&found, left) {
            // A static interpreter causes only a warning, because the programs that it starts may
            // be dynamically linked.
            Err(ProgramError::Static { program, .. }) => {
                self.warnings.push(format!(
                "{}, the interpreter of {}, is statically linked, so the libraries are loaded only \
                 into programs that it starts",
                program.display(),
                script.display()
            ));
                Ok(())
            }
            outcome => outcome,
        }
    }
}

/// Checks that the program gains no privileges when it starts. For a program that gains privileges,
/// the loader ignores `LD_PRELOAD`.
fn check_rights(path: &Path) -> Result<(), ProgramError> {
    let gains = |how| Err(ProgramError::GainsRights { program: path.into(), how });
    let found = fs::metadata(path).map_err(|error| ProgramError::Unreadable(path.into(), error))?;
    if statvfs(path).is_ok_and(|system| system.flags().contains(FsFlags::ST_NOSUID)) {
        return Ok(());
    }
    if found.mode() & SET_USER != 0 && found.uid() != geteuid().as_raw() {
        return gains("becomes another user (set-user-ID)");
    }
    if found.mode() & SET_GROUP != 0 && found.gid() != getegid().as_raw() {
        return gains("joins another group (set-group-ID)");
    }
    // File capabilities give root no further privileges.
    let has_capabilities =
        !getuid().is_root() && link::host::has_file_capabilities(path).unwrap_or(false);
    if has_capabilities { gains("gets capabilities (setcap)") } else { Ok(()) }
}

/// The relevant properties of an ELF file.
#[derive(Debug, Default)]
struct Shape {
    /// The field `e_machine` of the header.
    machine: u16,
    is_64_bits: bool,
    loader: Option<PathBuf>,
    /// Number of shared libraries that the file needs.
    libraries: usize,
    is_go: bool,
}

impl Shape {
    fn read(path: &Path, file: File) -> Result<Self, ProgramError> {
        let data = ReadCache::new(file);
        let damaged = |error: object::Error| {
            ProgramError::Unreadable(path.into(), io::Error::new(io::ErrorKind::InvalidData, error))
        };
        let Ok(header) = FileHeader64::<Endianness>::parse(&data) else {
            // The file is a 32-bit file, or not an executable in ELF format. The default values
            // describe both.
            return Ok(Self::default());
        };
        let endian = header.endian().map_err(damaged)?;
        let mut shape =
            Self { machine: header.e_machine(endian), is_64_bits: true, ..Self::default() };
        let segments = header.program_headers(endian, &data).map_err(damaged)?;
        for segment in segments {
            if let Some(loader) = segment.interpreter(endian, &data).map_err(damaged)? {
                shape.loader = Some(OsStr::from_bytes(loader).into());
            }
            if let Some(entries) = segment.dynamic(endian, &data).map_err(damaged)? {
                let needed =
                    entries.iter().filter(|entry| entry.tag32(endian) == Some(elf::DT_NEEDED));
                shape.libraries = needed.count();
            }
            if let Some(mut notes) = segment.notes(endian, &data).map_err(damaged)? {
                while let Ok(Some(note)) = notes.next() {
                    shape.is_go |= note.name() == b"Go";
                }
            }
        }
        Ok(shape)
    }

    /// Checks whether the program's loader can load our libraries.
    fn check(self, path: &Path, wanted: Wanted) -> Result<(), ProgramError> {
        let program = PathBuf::from(path);
        if !self.is_64_bits || self.machine != OUR_MACHINE {
            let found = if self.is_64_bits { machine_name(self.machine) } else { "32 bits".into() };
            return Err(ProgramError::OtherArchitecture {
                program,
                found,
                ours: std::env::consts::ARCH,
            });
        }
        let Some(loader) = self.loader else {
            // If the program is the loader itself, it preloads the libraries into the program that
            // it loads.
            let is_loader =
                program.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld"));
            return if is_loader && self.libraries == 0 && !self.is_go && is_shared_loader(path) {
                Ok(())
            } else {
                Err(ProgramError::Static { program, is_go: self.is_go, wanted })
            };
        };
        let is_musl = loader.as_os_str().as_bytes().windows(4).any(|part| part == b"musl");
        if is_musl || !is_shared_loader(&loader) {
            return Err(ProgramError::OtherLoader { program, loader, is_musl });
        }
        if !loader.exists() {
            return Err(ProgramError::NoInterpreter { program, interpreter: loader });
        }
        if self.libraries == 0 {
            return Err(ProgramError::NoLibrary(program));
        }
        Ok(())
    }
}

/// Returns whether `path` has the file name of the GNU C library's loader.
fn is_shared_loader(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().as_bytes();
    [&b"ld-linux"[..], b"ld.so", b"ld-2."].iter().any(|begin| name.starts_with(begin))
}

fn machine_name(machine: u16) -> String {
    match machine {
        elf::EM_X86_64 => "x86_64".into(),
        elf::EM_AARCH64 => "aarch64".into(),
        elf::EM_RISCV => "riscv".into(),
        elf::EM_PPC64 => "powerpc64".into(),
        elf::EM_S390 => "s390".into(),
        other => format!("machine {other} of ELF"),
    }
}

const OUR_MACHINE: u16 =
    if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };

/// Highest number of nested scripts. The kernel refuses the fifth.
const SCRIPTS_MAX: u32 = 4;

/// Number of bytes of a script's first line that the kernel reads.
const HEAD_BYTES: u64 = 256;

/// Search path if `PATH` is not set.
const USUAL_PATH: &str = "/bin:/usr/bin";

const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2000;
