// Included by build scripts and by `xtask`, so that all link the same.

/// Returns what the linker gets before the C library: `files` of `folder`, which is `abi/floor`, and two libraries that the
/// C library contains since 2.34. No name of today needs them, so the linker must not leave them out.
fn link_arguments(folder: &str, files: &[&str]) -> Vec<String> {
    let files = files.iter().map(|file| format!("{folder}/{file}"));
    let libraries = ["-Wl,--push-state,--no-as-needed", "-l:libpthread.so.0", "-l:libdl.so.2"];
    let libraries = libraries.into_iter().chain(["-Wl,--pop-state"]).map(str::to_owned);
    files.chain(libraries).collect()
}
