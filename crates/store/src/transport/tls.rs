// SPDX-License-Identifier: Apache-2.0
//! TLS: configures the trusted certificate authorities, and extracts the reason why a certificate was rejected.

use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;

use penstock_types::{Error, Result};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{CertificateError, ClientConfig, RootCertStore};

/// Builds a configuration that trusts only the certificate authorities in a PEM file, as AWS's tools do with
/// `AWS_CA_BUNDLE`. Returns a `Config` error if the file cannot be read or contains no certificate.
pub(super) fn trusting(bundle: &Path) -> Result<ClientConfig> {
    let bad =
        |problem: &dyn std::fmt::Display| Error::config("AWS_CA_BUNDLE", format!("{}: {problem}", bundle.display()));
    let mut roots = RootCertStore::empty();
    let pem = std::fs::read(bundle).map_err(|error| bad(&error))?;
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let added = certificate
            .map_err(|error| error.to_string())
            .and_then(|found| roots.add(found).map_err(|e| e.to_string()));
        added.map_err(|error| bad(&error))?;
    }
    if roots.is_empty() {
        return Err(bad(&"contains no certificate (want PEM, `-----BEGIN CERTIFICATE-----`)"));
    }
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::bug(format!("TLS versions: {error}")))?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// If the error means that the server's certificate was rejected, returns the reason.
pub(super) fn refusal(error: &(dyn StdError + 'static)) -> Option<String> {
    let mut cause = Some(error);
    while let Some(found) = cause {
        // `source` does not return the inner error of an I/O error.
        let inner = found.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        let tls = found.downcast_ref::<rustls::Error>().or_else(|| inner?.downcast_ref());
        if let Some(rustls::Error::InvalidCertificate(problem)) = tls {
            return Some(reason(problem));
        }
        cause = inner.map(|inner| inner as &(dyn StdError + 'static)).or_else(|| found.source());
    }
    None
}

fn reason(problem: &CertificateError) -> String {
    match problem {
        CertificateError::UnknownIssuer => "its issuer is unknown to this machine".to_owned(),
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => "it has expired".to_owned(),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        CertificateError::NotValidForName => "it was issued for a different name".to_owned(),
        CertificateError::NotValidForNameContext { presented, .. } => {
            // rustls formats each name like this: `DnsName("a.example")`.
            let names: Vec<&str> = presented.iter().filter_map(|name| name.split('"').nth(1).or(Some(name))).collect();
            format!("it was issued for {}", names.join(", "))
        }
        other if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            "it is a CA certificate (CA:TRUE), which servers must not use".to_owned()
        }
        other => other.to_string(),
    }
}
