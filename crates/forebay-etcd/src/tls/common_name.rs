//! The common name of a certificate's subject.

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// The version of a certificate, which may be left out.
const VERSION: u8 = 0xa0;
/// Texts: UTF-8, of printable letters, of ASCII, and of Latin-1 by name, in which ASCII alone is read.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x16, 0x14];
/// 2.5.4.3
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// The rest of some encoded values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Reads the next value: its tag and its contents.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut bytes = usize::from(first);
        if first & 0x80 != 0 {
            let (digits, behind) =
                rest.split_at_checked(usize::from(first & 0x7f)).filter(|(digits, _)| digits.len() <= 4)?;
            bytes = digits.iter().fold(0, |bytes, digit| (bytes << 8) | usize::from(*digit));
            rest = behind;
        }
        let (contents, behind) = rest.split_at_checked(bytes)?;
        self.0 = behind;
        Some((tag, contents))
    }

    /// Reads the next value, which has this tag.
    fn take(&mut self, wanted: u8) -> Option<Der<'a>> {
        self.next().filter(|(tag, _)| *tag == wanted).map(|(_, contents)| Der(contents))
    }
}

/// Returns the common name of a certificate's subject, the last of several, as etcd does; `None` without a textual common name.
pub(crate) fn common_name(certificate: &[u8]) -> Option<String> {
    let mut signed = Der(certificate).take(SEQUENCE)?.take(SEQUENCE)?;
    if signed.0.first() == Some(&VERSION) {
        signed.next()?;
    }
    // The serial number, the algorithm, the issuer, the time of validity.
    for _ in 0..4 {
        signed.next()?;
    }
    let (mut subject, mut found) = (signed.take(SEQUENCE)?, None);
    while !subject.0.is_empty() {
        let mut attributes = subject.take(SET)?;
        while !attributes.0.is_empty() {
            let mut attribute = attributes.take(SEQUENCE)?;
            let is_name = attribute.take(OBJECT)?.0 == COMMON_NAME;
            let (tag, text) = attribute.next()?;
            if is_name && TEXTS.contains(&tag) {
                found = String::from_utf8(text.to_vec()).ok();
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(name: Option<&str>) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["host".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "people");
        if let Some(name) = name {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn the_subject_has_a_common_name_or_none() {
        let long = "n".repeat(300);
        for name in ["u", "user.example", "M\u{fc}ller", "", &long] {
            assert_eq!(common_name(&certificate(Some(name))).as_deref(), Some(name));
        }
        assert_eq!(common_name(&certificate(None)), None);
    }

    #[test]
    fn a_certificate_that_is_cut_has_no_name() {
        let whole = certificate(Some("user"));
        for bytes in 0..whole.len() {
            assert_eq!(common_name(&whole[..bytes]), None, "{bytes}");
        }
    }
}
