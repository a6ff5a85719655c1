//! Changes of the sources of `siw`: constants that decide what it sends become parameters of the
//! module, with the same defaults. A test sets them in /sys/module/siw/parameters.

use std::fs;
use std::path::Path;

use super::error::GuestError;

/// Constants in `siw_main.c` of type `const bool`, which `siw.h` declares.
const SWITCHES: &[&str] =
    &["zcopy_tx", "try_gso", "mpa_crc_required", "mpa_crc_strict", "peer_to_peer"];

/// Lines that are replaced as they are: file, line, replacement.
const LINES: &[(&str, &str, &str)] = &[
    (
        "siw_main.c",
        "u_char mpa_version = MPA_REVISION_2;",
        "u_char mpa_version = MPA_REVISION_2;\nmodule_param(mpa_version, byte, 0644);",
    ),
    // Bits 0x8000 (write) and 0x4000 (read) of the word with the ORD, in the host's byte order.
    (
        "siw_cm.c",
        "static __be16 rtr_type = MPA_V2_RDMA_READ_RTR | MPA_V2_RDMA_WRITE_RTR;",
        "#include <linux/module.h>\nstatic ushort rtr_types = 0xc000;\n\
         module_param(rtr_types, ushort, 0644);\n#define rtr_type cpu_to_be16(rtr_types)",
    ),
];

/// Changes the sources in a folder. Fails if a line that it replaces is missing, as in a kernel
/// whose `siw` differs.
pub(crate) fn add_parameters(folder: &Path) -> Result<(), GuestError> {
    for file in ["siw_main.c", "siw_cm.c", "siw.h"] {
        let path = folder.join(file);
        let text = fs::read_to_string(&path).map_err(GuestError::read(&path))?;
        let changed = changed(file, &text)
            .map_err(|what| GuestError::Content { path: path.clone(), what })?;
        fs::write(&path, changed).map_err(GuestError::write(&path))?;
    }
    Ok(())
}

fn changed(file: &str, text: &str) -> Result<String, String> {
    let mut replaced = text.to_owned();
    let mut replace = |before: &str, after: &str| {
        if !replaced.contains(before) {
            return Err(format!("it does not contain `{before}`"));
        }
        replaced = replaced.replace(before, after);
        Ok(())
    };
    for (_, before, after) in LINES.iter().filter(|(other, ..)| *other == file) {
        replace(before, after)?;
    }
    for name in SWITCHES {
        match file {
            "siw.h" => {
                let (before, after) =
                    (format!("extern const bool {name};"), format!("extern bool {name};"));
                replace(&before, &after)?;
            }
            "siw_main.c" => {
                let parameter = format!("module_param({name}, bool, 0644);\nbool {name}");
                // The macro needs a declaration before it; `siw.h` contains one.
                replace(&format!("const bool {name}"), &parameter)?;
            }
            _ => {}
        }
    }
    Ok(replaced)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_switch_becomes_a_parameter_and_keeps_its_default() {
        let text = "u_char mpa_version = MPA_REVISION_2;\nconst bool zcopy_tx = true;\n\
            const bool try_gso;\nconst bool mpa_crc_required;\nconst bool mpa_crc_strict;\n\
            const bool siw_tcp_nagle;\nconst bool peer_to_peer;\n";
        let changed = changed("siw_main.c", text).expect("all lines are there");
        assert!(changed.contains("module_param(zcopy_tx, bool, 0644);\nbool zcopy_tx = true;\n"));
        assert_eq!(changed.matches("module_param(").count(), SWITCHES.len() + 1);
        assert_eq!(changed.matches("const bool").count(), 1, "{changed}");
    }

    #[test]
    fn a_source_without_an_expected_line_is_refused() {
        let error = changed("siw.h", "extern const bool zcopy_tx;\n").expect_err("others miss");
        assert_eq!(error, "it does not contain `extern const bool try_gso;`");
        assert!(changed("siw_cm.c", "").is_err());
    }
}
