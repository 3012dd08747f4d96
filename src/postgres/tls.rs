//! TLS as libpq means it: what is verified in which mode, client certificates, and the channel binding.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _},
    server::ParsedCertificate,
};
use sha2::Digest as _;

use super::{
    error::{Error, ErrorKind},
    settings::{ConnectSettings, Roots, TlsMode},
};

fn tls_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Tls, message)
}

/// The client's side of a handshake in the mode of `settings`, which must not be `disable`.
pub(super) fn client_config(settings: &ConnectSettings) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Verifier {
        trust: trust(settings)?,
        check_name: settings.tls == TlsMode::VerifyFull,
        provider: Arc::clone(&provider),
    });
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| tls_error(format!("TLS cannot be set up: {error}")))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match (&settings.client_cert, &settings.client_key) {
        (Some(cert), Some(key)) => {
            let chain = certificates(cert, "sslcert")?;
            let key = PrivateKeyDer::from_pem_file(key).map_err(|error| {
                tls_error(format!("sslkey {}: no private key can be read: {error}", key.display()))
            })?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| tls_error(format!("sslcert and sslkey do not work together: {error}")))?
        }
        _ => builder.with_no_client_auth(),
    };
    if settings.direct_tls {
        config.alpn_protocols = vec![b"postgresql".to_vec()];
    }
    Ok(config)
}

fn certificates(path: &Path, what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(list) if !list.is_empty() => Ok(list),
        Ok(_) => Err(tls_error(format!("{what} {}: the file has no PEM certificate", path.display()))),
        Err(error) => Err(tls_error(format!("{what} {}: {error}", path.display()))),
    }
}

#[derive(Debug)]
struct Trust {
    roots: RootCertStore,
    /// As given: a self-signed server certificate may stand here itself.
    exact: Vec<CertificateDer<'static>>,
}

fn trust(settings: &ConnectSettings) -> Result<Option<Trust>, Error> {
    if settings.tls < TlsMode::VerifyCa {
        return Ok(None);
    }
    let mut roots = RootCertStore::empty();
    let exact = match &settings.roots {
        Roots::File(path) => certificates(path, "sslrootcert")?,
        Roots::Unset | Roots::System => rustls_native_certs::load_native_certs().certs,
    };
    let (added, _) = roots.add_parsable_certificates(exact.iter().cloned());
    if added == 0 {
        return Err(tls_error("no root certificate was found; name a PEM file with `sslrootcert`"));
    }
    Ok(Some(Trust { roots, exact }))
}

#[derive(Debug)]
struct Verifier {
    /// None: encrypt without asking who it is.
    trust: Option<Trust>,
    check_name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if let Some(trust) = &self.trust {
            let parsed = ParsedCertificate::try_from(end_entity)?;
            // OpenSSL trusts a certificate that is itself in the file; webpki wants an authority above it.
            if !trust.exact.iter().any(|known| known.as_ref() == end_entity.as_ref()) {
                let algorithms = self.provider.signature_verification_algorithms.all;
                verify_server_cert_signed_by_trust_anchor(
                    &parsed,
                    &trust.roots,
                    intermediates,
                    now,
                    algorithms,
                )?;
            }
            if self.check_name {
                verify_server_name(&parsed, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// One sentence for a failed handshake.
pub(super) fn explain(error: &std::io::Error, host: &str) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let Some(rustls::Error::InvalidCertificate(why)) = inner else {
        return tls_error(format!("the TLS handshake with {host} failed: {error}"));
    };
    use rustls::CertificateError as C;
    tls_error(match why {
        C::NotValidForName | C::NotValidForNameContext { .. } => format!(
            "the certificate of {host} is made out to another name (sslmode=verify-full); connect by the name in \
             its subjectAltName, or use verify-ca"
        ),
        C::UnknownIssuer => format!(
            "the certificate of {host} is signed by an authority that is not trusted; name its root with `sslrootcert`"
        ),
        C::Expired | C::ExpiredContext { .. } => format!("the certificate of {host} has expired"),
        C::NotValidYet | C::NotValidYetContext { .. } => {
            format!("the certificate of {host} is not valid yet")
        }
        other => format!("the certificate of {host} is refused: {other}"),
    })
}

/// The `tls-server-end-point` binding (RFC 5929): the certificate's hash by the algorithm it is signed with,
/// SHA-256 in place of weaker ones. None where the algorithm has no hash of its own (Ed25519).
pub(super) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (certificate_body, _) = element(certificate, 0x30)?;
    let (_, after_tbs) = element(certificate_body, 0x30)?;
    let (algorithm, _) = element(after_tbs, 0x30)?;
    let (oid, parameters) = element(algorithm, 0x06)?;
    let hash = match oid {
        // RSASSA-PSS: the hash is in its parameters; RFC 4055.
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10] => pss_hash(parameters)?,
        // md5, sha1, sha256, sha384, sha512 with RSA; RFC 4055 and 3279.
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, last] => match last {
            4 | 5 | 11 => Hash::Sha256,
            12 => Hash::Sha384,
            13 => Hash::Sha512,
            _ => return None,
        },
        // ECDSA with sha1, sha256, sha384, sha512; RFC 5758.
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1] | [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2] => Hash::Sha256,
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3] => Hash::Sha384,
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4] => Hash::Sha512,
        _ => return None,
    };
    Some(match hash {
        Hash::Sha256 => sha2::Sha256::digest(certificate).to_vec(),
        Hash::Sha384 => sha2::Sha384::digest(certificate).to_vec(),
        Hash::Sha512 => sha2::Sha512::digest(certificate).to_vec(),
    })
}

enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

fn pss_hash(parameters: &[u8]) -> Option<Hash> {
    let (sequence, _) = element(parameters, 0x30)?;
    let Some((explicit, _)) = element(sequence, 0xa0) else { return Some(Hash::Sha256) };
    let (algorithm, _) = element(explicit, 0x30)?;
    let (oid, _) = element(algorithm, 0x06)?;
    match oid {
        [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1] => Some(Hash::Sha256),
        [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 2] => Some(Hash::Sha384),
        [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 3] => Some(Hash::Sha512),
        _ => None,
    }
}

/// One DER element with the given tag: its content, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], mut rest) = bytes.split_first_chunk::<2>()?;
    if found != tag {
        return None;
    }
    let mut length = usize::from(first);
    if first & 0x80 != 0 {
        let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
        if digits.len() > 4 {
            return None;
        }
        length = digits.iter().fold(0, |sum, digit| sum << 8 | usize::from(*digit));
        rest = after;
    }
    rest.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_certificates_have_no_binding_and_do_not_panic() {
        for bytes in [&b""[..], b"\x30", b"\x30\x84\xff\xff\xff\xff", b"\x30\x03\x30\x01\x00", b"\x30\x80"] {
            assert_eq!(end_point(bytes), None);
        }
    }
}
