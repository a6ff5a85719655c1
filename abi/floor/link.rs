// Build scripts and `xtask` include this file, so that all of them link in the same way.

/// Returns the arguments for the linker that must precede the C library. `folder` is `abi/floor`,
/// and `files` are files in it. The arguments also name libpthread and libdl, which the C library
/// contains since 2.34. With a newer C library, no symbol needs these two libraries, so
/// `--no-as-needed` makes the linker keep them.
fn link_arguments(folder: &str, files: &[&str]) -> Vec<String> {
    let files = files.iter().map(|file| format!("{folder}/{file}"));
    let libraries = ["-Wl,--push-state,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2"];
    let libraries = libraries.into_iter().chain(["-Wl,--pop-state"]).map(str::to_owned);
    files.chain(libraries).collect()
}
