//! Checks of the host, common to several tests.

use testbed::namespace::are_possible;
use testbed::pair::NamespacePair;

/// Returns whether the test can make and use network namespaces. If not, prints the reason. Also
/// checks that `ip` can make its mounts private, which is impossible in a chroot.
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
