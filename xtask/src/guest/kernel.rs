//! The guest's kernel: Debian's, unpacked for a direct start, and the module `siw`, which Debian
//! does not build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::{GuestError, output_of};
use super::{packages, siw};

/// Names of the kernel's packages.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Release {
    /// The kernel's own version, for example `6.1.0-56-amd64`.
    pub(crate) version: String,
    image: String,
    headers: Vec<String>,
    source: String,
}

/// The parts of the kernel that a guest needs.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The file that qemu starts.
    pub(crate) vmlinux: PathBuf,
    /// The folder `lib/modules/VERSION`.
    pub(crate) modules: PathBuf,
    /// The built module `siw`.
    pub(crate) siw: PathBuf,
}

impl Release {
    /// Returns the kernel that the package lists offer.
    pub(crate) fn newest() -> Result<Self, GuestError> {
        let image = dependency("linux-image-amd64", "linux-image-")?;
        let version = image.trim_start_matches("linux-image-").to_owned();
        let headers = format!("linux-headers-{version}");
        let common = dependency(&headers, "linux-headers-")?;
        let kbuild = dependency(&headers, "linux-kbuild-")?;
        let source = dependency("linux-source", "linux-source-")?;
        Ok(Self { version, image, headers: vec![headers, common, kbuild], source })
    }

    /// Fetches and unpacks the kernel and builds `siw`, below `folder`. Keeps results of an
    /// earlier build of the same version.
    pub(crate) fn build(&self, folder: &Path, debs: &Path) -> Result<Kernel, GuestError> {
        let place = folder.join(&self.version);
        let modules = place.join("lib/modules").join(&self.version);
        let vmlinux = place.join("vmlinux");
        if !vmlinux.exists() {
            fs::create_dir_all(&place).map_err(GuestError::write(&place))?;
            for package in packages::fetch(std::slice::from_ref(&self.image), debs)? {
                package.unpack(&place)?;
            }
            let image = place.join("boot").join(format!("vmlinuz-{}", self.version));
            decompress(&image, &vmlinux)?;
        }
        let siw = place.join("siw.ko");
        if !siw.exists() {
            self.build_siw(&place, debs, &siw)?;
        }
        Ok(Kernel { vmlinux, modules, siw })
    }

    fn build_siw(&self, place: &Path, debs: &Path, target: &Path) -> Result<(), GuestError> {
        let [headers, source] = ["headers", "source"].map(|name| place.join(name));
        for package in packages::fetch(&self.headers, debs)? {
            package.unpack(&headers)?;
        }
        fs::create_dir_all(&source).map_err(GuestError::write(&source))?;
        for package in packages::fetch(std::slice::from_ref(&self.source), debs)? {
            extract_siw(&package.path, &source)?;
        }
        siw::add_parameters(&source)?;
        relocate(&headers, &self.version)?;
        output_of(
            Command::new("make")
                .arg("-C")
                .arg(headers.join("usr/src").join(format!("linux-headers-{}", self.version)))
                .arg(format!("M={}", source.display()))
                .args(["CONFIG_RDMA_SIW=m", "modules"]),
        )?;
        let built = source.join("siw.ko");
        output_of(Command::new("strip").arg("--strip-debug").arg(&built))?;
        // Renaming comes last, so that an interrupted build leaves no module behind.
        fs::rename(&built, target).map_err(GuestError::write(target))
    }
}

/// Returns the first dependency of a package whose name begins with `prefix`.
fn dependency(package: &str, prefix: &str) -> Result<String, GuestError> {
    let missing = || GuestError::NoPackage { name: format!("{prefix}* of {package}") };
    let mut names = packages::dependencies(package)?.into_iter();
    names.find(|name| name.starts_with(prefix)).ok_or_else(missing)
}

/// Writes the kernel that is compressed in a boot image. qemu starts it directly, without firmware
/// and without the decompression, which takes seconds without hardware support.
fn decompress(image: &Path, vmlinux: &Path) -> Result<(), GuestError> {
    let content = fs::read(image).map_err(GuestError::read(image))?;
    let unexpected = |what: &str| GuestError::Content { path: image.into(), what: what.into() };
    let payload = payload(&content).ok_or_else(|| unexpected("no boot image of x86"))?;
    let program = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        _ => return Err(unexpected("compressed neither by xz nor by zstd")),
    };
    let compressed = vmlinux.with_extension("compressed");
    fs::write(&compressed, payload).map_err(GuestError::write(&compressed))?;
    let input = fs::File::open(&compressed).map_err(GuestError::read(&compressed))?;
    let partial = vmlinux.with_extension("partial");
    let output = fs::File::create(&partial).map_err(GuestError::write(&partial))?;
    let mut command = Command::new(program);
    command.args(["--decompress", "--stdout"]).stdin(input).stdout(output).stderr(Stdio::inherit());
    let status =
        command.status().map_err(|cause| GuestError::Start { program: program.into(), cause })?;
    if !status.success() {
        let output = String::new();
        return Err(GuestError::Failed { program: program.into(), status, output });
    }
    fs::remove_file(&compressed).map_err(GuestError::write(&compressed))?;
    // Renaming comes last, so that an interrupted build leaves no kernel behind.
    fs::rename(&partial, vmlinux).map_err(GuestError::write(vmlinux))
}

/// Returns the compressed kernel in a boot image, without the four bytes with its size at the end
/// (Documentation/x86/boot.rst: `setup_sects`, `payload_offset`, `payload_length`).
fn payload(image: &[u8]) -> Option<&[u8]> {
    let number = |offset: usize| {
        let bytes = image.get(offset..offset + 4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let setup_bytes = (usize::from(*image.get(0x1f1)?) + 1) * 512;
    let start = setup_bytes.checked_add(number(0x248)?)?;
    let length = number(0x24c)?.checked_sub(4)?;
    image.get(start..start.checked_add(length)?)
}

/// Extracts the sources of `siw` from the package with the kernel's source.
fn extract_siw(package: &Path, folder: &Path) -> Result<(), GuestError> {
    const SCRIPT: &str = "set -o pipefail; dpkg-deb --fsys-tarfile \"$1\" \
        | tar --extract --to-stdout --wildcards '*/linux-source-*.tar.xz' \
        | tar --extract --xz --directory \"$2\" --strip-components=5 --wildcards '*/drivers/infiniband/sw/siw/*'";
    output_of(Command::new("bash").args(["-c", SCRIPT, "bash"]).arg(package).arg(folder)).map(drop)
}

/// Replaces the path /usr/src in the make files of the unpacked headers.
fn relocate(headers: &Path, version: &str) -> Result<(), GuestError> {
    let sources = headers.join("usr/src");
    let file = sources.join(format!("linux-headers-{version}")).join("Makefile");
    let text = fs::read_to_string(&file).map_err(GuestError::read(&file))?;
    let ours = text.replace(" /usr/src/", &format!(" {}/", sources.display()));
    fs::write(&file, ours).map_err(GuestError::write(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_of_a_boot_image_is_found() {
        let mut image = vec![0; 2048];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&8_u32.to_le_bytes());
        image[1040..1048].copy_from_slice(b"datasize");
        assert_eq!(payload(&image), Some(b"data".as_slice()));
        for length in [0, 0x206, 0x250, 1041] {
            assert_eq!(payload(&image[..length]), None, "{length}");
        }
        image[0x24c..0x250].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(payload(&image), None);
    }
}
