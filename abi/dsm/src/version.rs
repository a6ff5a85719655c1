//! The version of the library.

/// The version of this header, as `major * 1000000 + minor * 1000 + patch`.
pub const ETHERNOT_DSM_VERSION: u32 = 1000;

/// Returns the version of the library that the program uses at run time. The number has the same
/// form as `ETHERNOT_DSM_VERSION`.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_version() -> u32 {
    ETHERNOT_DSM_VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_equals_that_of_the_crate() {
        let parts = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")];
        let [major, minor] = parts.map(|part| part.parse::<u32>().expect("a number"));
        let patch: u32 = env!("CARGO_PKG_VERSION_PATCH").parse().expect("a number");
        assert_eq!(ethernot_dsm_version(), major * 1_000_000 + minor * 1000 + patch);
    }
}
