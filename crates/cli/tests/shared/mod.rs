//! Checks of the host, common to several tests.

use bench::namespaces::{NamespacePair, are_possible};

/// Returns whether network namespaces can be made and used; if not, prints the reason. Checks more
/// than making one: `ip` also needs mounts that it can make private, and a chroot has none.
pub(crate) fn can_make_namespaces() -> bool {
    let error = if are_possible() {
        NamespacePair::create(1, 1500).err().map(|error| error.to_string())
    } else {
        Some("network namespaces need root".to_string())
    };
    if let Some(error) = &error {
        println!("skipped: {error}");
    }
    error.is_none()
}
