// SPDX-License-Identifier: Apache-2.0
//! Sources of Azure tokens, in this order: the environment, the login of `az` and, if the settings allow it, the
//! instance metadata. The environment can configure a client secret or certificate, a workload identity, or the managed
//! identity of an App Service or container. The search ends at the first configured source, even if that source fails.
//! The next source would be another identity.

use std::collections::HashMap;

use bytes::Bytes;
use http::Request;
use penstock_types::unix_now;
use percent_encoding::percent_encode;
use reqsign_azure_storage::{
    ClientCertificateCredentialProvider, ClientSecretCredentialProvider, Credential, ImdsCredentialProvider,
    WorkloadIdentityCredentialProvider,
};
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, ProvideCredential, Result};
use serde::Deserialize;

use crate::credentials::Expiring;
use crate::transport::QUERY;

const RESOURCE: &str = "https://storage.azure.com/";
/// Assumed lifetime, in seconds, of a token whose response contains no expiry time.
const SHORT_S: i64 = 300;

impl Expiring for Credential {
    fn ends_s(&self) -> Option<i64> {
        match self {
            Self::BearerToken { expires_in, .. } => expires_in.map(Timestamp::as_second),
            Self::SharedKey { .. } | Self::SasToken { .. } => None,
        }
    }

    fn is_fixed(&self) -> bool {
        !matches!(self, Self::BearerToken { .. })
    }
}

/// Chain of token sources. If the settings contain a key or a SAS, no source is used.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) given: Option<Credential>,
    pub(super) asks_instance: bool,
    pub(super) asks_cli: bool,
    pub(super) variables: HashMap<String, String>,
}

impl ProvideCredential for Chain {
    type Credential = Credential;

    async fn provide_credential(&self, context: &Context) -> Result<Option<Credential>> {
        if let Some(given) = &self.given {
            return Ok(Some(given.clone()));
        }
        let has = |name: &str| self.variables.contains_key(name);
        let half =
            |what: &str| Error::config_invalid(format!("{what} is set, but AZURE_TENANT_ID or AZURE_CLIENT_ID is not"));
        if has("AZURE_CLIENT_SECRET") {
            let found = ClientSecretCredentialProvider::new().provide_credential(context).await?;
            return found.map(Some).ok_or_else(|| half("AZURE_CLIENT_SECRET"));
        }
        if has("AZURE_CLIENT_CERTIFICATE_PATH") {
            let found = ClientCertificateCredentialProvider::new().provide_credential(context).await?;
            return found.map(Some).ok_or_else(|| half("AZURE_CLIENT_CERTIFICATE_PATH"));
        }
        if has("AZURE_FEDERATED_TOKEN_FILE") {
            let found = WorkloadIdentityCredentialProvider::new().provide_credential(context).await?;
            return found.map(Some).ok_or_else(|| half("AZURE_FEDERATED_TOKEN_FILE"));
        }
        if let (Some(url), Some(header)) =
            (self.variables.get("IDENTITY_ENDPOINT"), self.variables.get("IDENTITY_HEADER"))
        {
            let client = self.variables.get("AZURE_CLIENT_ID").map(String::as_str);
            return managed(context, url, header, client).await.map(Some);
        }
        if self.asks_cli
            && let Some(credential) = of_cli(context).await?
        {
            return Ok(Some(credential));
        }
        match self.asks_instance {
            true => ImdsCredentialProvider::new().provide_credential(context).await,
            false => Ok(None),
        }
    }
}

/// A time in Azure's responses: seconds since the epoch, as a number or as a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum Seconds {
    Number(i64),
    Text(String),
}

#[derive(Deserialize)]
struct Token {
    #[serde(alias = "accessToken")]
    access_token: String,
    expires_on: Option<Seconds>,
}

/// Parses the token in a response. Errors do not quote the response.
fn token(answer: &[u8], whom: &str) -> Result<Credential> {
    let odd = || Error::credential_invalid(format!("{whom} returned no token"));
    let token: Token = serde_json::from_slice(answer).map_err(|_| odd())?;
    let ends_s = match token.expires_on {
        Some(Seconds::Number(ends_s)) => Some(ends_s),
        Some(Seconds::Text(text)) => text.parse().ok(),
        None => None,
    };
    let ends_s = ends_s.unwrap_or(unix_now().as_secs() as i64 + SHORT_S);
    let ends = Timestamp::from_second(ends_s).map_err(|_| odd())?;
    Ok(Credential::with_bearer_token(&token.access_token, Some(ends)))
}

/// Requests a token for the managed identity of an App Service, a Function or a Container App. The host provides the
/// endpoint for this request.
async fn managed(context: &Context, url: &str, header: &str, client: Option<&str>) -> Result<Credential> {
    let quoted = |text: &str| percent_encode(text.as_bytes(), QUERY).to_string();
    let client = client.map(|client| format!("&client_id={}", quoted(client))).unwrap_or_default();
    let request = Request::builder()
        .uri(format!("{url}?api-version=2019-08-01&resource={}{client}", quoted(RESOURCE)))
        .header("X-IDENTITY-HEADER", header)
        .body(Bytes::new())
        .map_err(|_| {
            Error::config_invalid(
                "IDENTITY_ENDPOINT is not a valid URL, or IDENTITY_HEADER is not a valid header value",
            )
        })?;
    let answer = context.http_send(request).await?;
    match answer.status() {
        status if status.is_success() => token(answer.body(), "IDENTITY_ENDPOINT"),
        status => {
            let text = format!("the managed identity at IDENTITY_ENDPOINT returned HTTP {}", status.as_u16());
            Err(Error::permission_denied(text).set_retryable(status.as_u16() == 429 || status.is_server_error()))
        }
    }
}

/// Gets a token from the `az` program, which caches and renews its login. Returns `None` if `az` is not installed.
async fn of_cli(context: &Context) -> Result<Option<Credential>> {
    let arguments = ["account", "get-access-token", "--resource", RESOURCE, "--output", "json"];
    let Ok(output) = context.command_execute("az", &arguments).await else { return Ok(None) };
    if !output.success() {
        return Err(Error::credential_invalid("`az` returned no token; run `az login`"));
    }
    token(&output.stdout, "az").map(Some)
}
