//! Address handles: destinations of datagrams.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use crate::attributes::{AddressVectorAttributes, Gid};
use crate::device::{Context, check_port};
use crate::error::Error;
use crate::protection_domain::ProtectionDomain;
use crate::services::QueuePairType;
use crate::uses::Uses;
use crate::work_request::WorkCompletion;

/// An address handle.
#[derive(Debug)]
pub struct AddressHandle {
    domain: Arc<ProtectionDomain>,
    to: AddressVectorAttributes,
    uses: Uses,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

impl AddressHandle {
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        to: &AddressVectorAttributes,
    ) -> Result<Arc<Self>, Error> {
        let attributes = domain.context().device().attributes();
        if !attributes.services.has(QueuePairType::Datagram) {
            let what = format!("address handles on {}, which has no datagrams", attributes.name);
            return Err(Error::NotSupported(what));
        }
        check(domain, to)?;
        domain.uses().begin_of("protection domain")?;
        let max = attributes.address_handles_max;
        let begun =
            domain.context().begin("address handles", max, |counts| &mut counts.address_handles);
        if let Err(error) = begun {
            domain.uses().end();
            return Err(error);
        }
        let (domain, to) = (Arc::clone(domain), *to);
        Ok(Arc::new(Self { domain, to, uses: Uses::default(), user: AtomicUsize::new(0) }))
    }

    /// Returns the address vector.
    pub const fn attributes(&self) -> &AddressVectorAttributes {
        &self.to
    }

    /// Returns the protection domain.
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Destroys the address handle.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the handle is already destroyed.
    pub fn destroy(&self) -> Result<(), Error> {
        self.domain.context().provider().check()?;
        self.uses.destroy("address handle")?;
        self.domain.context().end(|counts| &mut counts.address_handles);
        self.domain.uses().end();
        Ok(())
    }
}

/// Returns the address vector for an answer to a received datagram. The peer's address comes from
/// the route header, the first 40 bytes of a received datagram.
///
/// # Errors
/// Returns [`Error::Invalid`] if the datagram has no route header, or if the header is not that of
/// an IP packet.
pub fn answer_to(
    context: &Context,
    port: u8,
    completion: &WorkCompletion,
    route_header: &[u8; 40],
) -> Result<AddressVectorAttributes, Error> {
    check_port(port)?;
    if !completion.has_route_header {
        return Err(Error::Invalid("the completion has no route header".into()));
    }
    let (source, destination) = addresses(route_header)
        .ok_or_else(|| Error::Invalid("the route header is not that of an IP packet".into()))?;
    let own = context.gids()?.into_iter().find(|entry| entry.gid == destination);
    let source_index = own.map_or(0, |entry| entry.index as u8);
    Ok(AddressVectorAttributes {
        gid: source,
        source_index,
        hop_limit: 64,
        is_global: true,
        port,
        ..AddressVectorAttributes::default()
    })
}

/// Returns the source and the destination address in a route header. A route header is an IPv6
/// header of 40 bytes, or 20 unused bytes and an IPv4 header of 20 bytes. Returns `None` for other
/// content.
fn addresses(header: &[u8; 40]) -> Option<(Gid, Gid)> {
    let v4 = |at: usize| {
        let bytes: [u8; 4] = header.get(at..at + 4)?.try_into().ok()?;
        Some(Gid::of(std::net::Ipv4Addr::from(bytes).into()))
    };
    let v6 = |at: usize| Some(Gid(header.get(at..at + 16)?.try_into().ok()?));
    if header[20] >> 4 == 4 && header[0] >> 4 != 6 {
        return Some((v4(32)?, v4(36)?));
    }
    (header[0] >> 4 == 6).then_some((v6(8)?, v6(24)?))
}

/// Checks the path of an address handle or of a connection.
pub(crate) fn check(domain: &ProtectionDomain, to: &AddressVectorAttributes) -> Result<(), Error> {
    check_port(to.port)?;
    if !to.is_global {
        return Err(Error::Invalid("an address on Ethernet needs a GID".into()));
    }
    domain.gid_at(to.source_index)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_header_of_either_version_names_the_sender() {
        let mut header = [0; 40];
        header[20] = 0x45;
        header[32..36].copy_from_slice(&[10, 0, 0, 1]);
        header[36..40].copy_from_slice(&[10, 0, 0, 2]);
        let of = |text: &str| Gid::of(text.parse().expect("an address"));
        assert_eq!(addresses(&header), Some((of("10.0.0.1"), of("10.0.0.2"))));
        let mut header = [0; 40];
        header[0] = 0x60;
        header[8..24].copy_from_slice(&of("fe80::1").0);
        header[24..40].copy_from_slice(&of("fe80::2").0);
        assert_eq!(addresses(&header), Some((of("fe80::1"), of("fe80::2"))));
        assert_eq!(addresses(&[0; 40]), None);
    }
}
