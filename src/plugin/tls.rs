//! TLS of requests over HTTP: those that guests make, and those of the sink that is built in.

use std::{fs, path::Path, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject as _},
};

/// A client's side of TLS, which trusts the authorities of a file, or those of the system, which have to be there where
/// they are `needed`.
///
/// # Errors
/// No authority, in a sentence that names the setting.
pub(crate) fn client(ca_file: Option<&Path>, needed: bool) -> Result<ClientConfig, String> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(path) => {
            let wrong = |what: String| format!("`ca_file` {}: {what}", path.display());
            let pem = fs::read(path).map_err(|error| wrong(error.to_string()))?;
            for certificate in CertificateDer::pem_slice_iter(&pem) {
                let certificate = certificate.map_err(|error| wrong(format!("not PEM: {error}")))?;
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
            if roots.is_empty() {
                return Err(wrong(
                    "there is no certificate in it; it needs `BEGIN CERTIFICATE` blocks".to_owned(),
                ));
            }
        }
        None if needed => {
            let (added, _) = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if added == 0 {
                return Err(
                    "this system has no certificate authorities; install them (`ca-certificates`) or set `ca_file`"
                        .to_owned(),
                );
            }
        }
        None => {}
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let versions = versions.map_err(|error| format!("TLS: {error}"))?;
    Ok(versions.with_root_certificates(roots).with_no_client_auth())
}
