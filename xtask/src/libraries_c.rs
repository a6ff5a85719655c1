//! The libraries for programs in C. Each comes with a header and a file for pkg-config, and has a
//! recorded ABI.

use std::path::Path;

use crate::error::XtaskError;
use crate::libraries::{made, place};
use crate::workspace::Workspace;

/// A library for programs in C.
#[derive(Debug)]
pub(crate) struct CLibrary {
    /// The crate.
    pub(crate) package: &'static str,
    /// The file that cargo builds.
    built: &'static str,
    /// The name by which programs are linked.
    pub(crate) name: &'static str,
    /// The number at the end of the name by which loaders search for the library.
    version: &'static str,
    /// The header, relative to the root of the repository.
    pub(crate) header: &'static str,
    /// The file for pkg-config, with places for version and path.
    pkg_config: &'static str,
    /// The recorded description of the ABI.
    pub(crate) recorded: &'static str,
    /// Permitted changes of the ABI that `abidiff` would report.
    pub(crate) may_change: &'static str,
}

/// All libraries for programs in C.
pub(crate) const FOR_C: [CLibrary; 2] = [
    CLibrary {
        package: "ethernot-c",
        built: "libethernot_c.so",
        name: "libethernot.so",
        version: "0",
        header: "abi/c/include/ethernot.h",
        pkg_config: "abi/c/ethernot.pc.in",
        recorded: "docs/api/ethernot-c.abi.xml",
        may_change: "abi/c/ethernot.abignore",
    },
    CLibrary {
        package: "ethernot-dsm-c",
        built: "libethernot_dsm_c.so",
        name: "libethernot-dsm.so",
        version: "0",
        header: "abi/dsm/include/ethernot_dsm.h",
        pkg_config: "abi/dsm/ethernot-dsm.pc.in",
        recorded: "docs/api/ethernot-dsm.abi.xml",
        may_change: "abi/dsm/ethernot-dsm.abignore",
    },
];

impl CLibrary {
    /// Returns the file name by which loaders search for the library.
    pub(crate) fn versioned(&self) -> String {
        format!("{}.{}", self.name, self.version)
    }

    /// Returns the file name of the header.
    pub(crate) fn header_name(&self) -> &'static str {
        file_name(self.header)
    }

    /// Returns the file name of the file for pkg-config.
    pub(crate) fn pkg_config_name(&self) -> &'static str {
        file_name(self.pkg_config).trim_end_matches(".in")
    }

    /// Returns the content of the file for pkg-config. The library is in the folder above this file;
    /// `include` is the path of the header relative to the library's folder.
    pub(crate) fn pkg_config(
        &self,
        workspace: &Workspace,
        include: &str,
    ) -> Result<String, XtaskError> {
        let path = workspace.root.join(self.pkg_config);
        let text =
            std::fs::read_to_string(&path).map_err(|cause| XtaskError::Read { path, cause })?;
        Ok(text.replace("@version@", env!("CARGO_PKG_VERSION")).replace("@include@", include))
    }

    /// Places the library, its versioned name, the header and the file for pkg-config.
    pub(crate) fn place(
        &self,
        workspace: &Workspace,
        profile: &Path,
        folder: &Path,
    ) -> Result<(), XtaskError> {
        let versioned = self.versioned();
        place(&profile.join(self.built), &folder.join(&versioned))?;
        let name = folder.join(self.name);
        let fresh = name.with_extension("fresh");
        // An interrupted build may have left this file.
        let _none = std::fs::remove_file(&fresh);
        let linked = std::os::unix::fs::symlink(&versioned, &fresh);
        linked
            .and_then(|()| std::fs::rename(&fresh, &name))
            .map_err(|cause| XtaskError::Write { path: name.clone(), cause })?;
        let header = made(folder.join("include"))?.join(self.header_name());
        place(&workspace.root.join(self.header), &header)?;
        let path = made(folder.join("pkgconfig"))?.join(self.pkg_config_name());
        let text = self.pkg_config(workspace, "include")?;
        std::fs::write(&path, text).map_err(|cause| XtaskError::Write { path, cause })
    }
}

/// Returns the part of a path behind the last slash.
fn file_name(path: &'static str) -> &'static str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_follow_the_names_of_the_libraries() {
        let [edge, dsm] = &FOR_C;
        assert_eq!(edge.versioned(), "libethernot.so.0");
        assert_eq!((edge.header_name(), edge.pkg_config_name()), ("ethernot.h", "ethernot.pc"));
        assert_eq!(dsm.versioned(), "libethernot-dsm.so.0");
        let names = (dsm.header_name(), dsm.pkg_config_name());
        assert_eq!(names, ("ethernot_dsm.h", "ethernot-dsm.pc"));
    }
}
