// SPDX-License-Identifier: Apache-2.0
//! Tokens by Google's application default credentials: `GOOGLE_APPLICATION_CREDENTIALS`, then the file that
//! `gcloud auth application-default login` writes. The metadata address is asked only where the settings say so.

use http::request;
use penstock_types::Result;
use reqsign_core::{Context, Signer, StaticEnv};
use reqsign_file_read_tokio::TokioFileRead;
use reqsign_google::{Credential, DefaultCredentialProvider, RequestSigner};

use super::GcsSettings;
use crate::wire::client::Http;
use crate::wire::unsigned;

const SCOPE: &str = "https://www.googleapis.com/auth/devstorage.read_write";

/// What to do without credentials.
const ADVICE: &str = "set GOOGLE_APPLICATION_CREDENTIALS, run `gcloud auth application-default \
    login`, or read a public bucket with PENSTOCK_GS_ANONYMOUS=1";

/// Adds a token; it is loaded at the first request, kept, and refreshed before it expires.
pub(super) struct Sign {
    signer: Option<Signer<Credential>>,
}

impl Sign {
    pub(super) fn new(settings: &GcsSettings, is_anonymous: bool, http: Http) -> Self {
        if is_anonymous {
            return Self { signer: None };
        }
        let mut chain = DefaultCredentialProvider::builder();
        if !settings.asks_instance {
            chain = chain.no_vm_metadata();
        }
        let context = Context::new()
            .with_file_read(TokioFileRead)
            .with_http_send(http)
            .with_env(StaticEnv { home_dir: None, envs: settings.variables.clone() });
        let signer = RequestSigner::new("storage").with_scope(SCOPE);
        Self { signer: Some(Signer::new(context, chain.build(), signer)) }
    }

    pub(super) async fn sign(&self, head: &mut request::Parts, place: &str) -> Result<()> {
        let Some(signer) = &self.signer else { return Ok(()) };
        signer.sign(head, None).await.map_err(|error| unsigned(&error, place, ADVICE))
    }
}
