// SPDX-License-Identifier: Apache-2.0
//! IAM Identity Center (SSO): exchanges the token that `aws sso login` saved in `~/.aws/sso/cache` for the keys of a
//! role. If the token belongs to a session, it is renewed and saved there again, so that other ranks and the AWS tools
//! can use the new token.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use penstock_types::unix_now;
use percent_encoding::percent_encode;
use reqsign_aws_v4::Credential;
use reqsign_core::time::Timestamp;
use reqsign_core::{Context, Error, Result, hash};
use serde::{Deserialize, Serialize};

use super::profile_files::Sso;
use crate::transport::QUERY;

/// A token is renewed if its remaining lifetime is less than this.
const LEAD: Duration = Duration::from_secs(300);

/// Content of a token file, in the format of the AWS CLI. Unknown fields are preserved.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Cached {
    access_token: String,
    expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_secret: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
    #[serde(flatten)]
    rest: serde_json::Map<String, serde_json::Value>,
}

impl Cached {
    fn left_s(&self) -> i64 {
        let ends = self.expires_at.parse::<Timestamp>().map_or(0, Timestamp::as_second);
        ends - unix_now().as_secs() as i64
    }
}

fn login(sso: &Sso, why: &str) -> Error {
    let how = if sso.is_session {
        format!("aws sso login --sso-session {}", sso.cached_as)
    } else {
        "aws sso login".to_owned()
    };
    Error::credential_invalid(format!("the SSO login {why}; run `{how}`"))
}

fn place(context: &Context, sso: &Sso) -> Result<PathBuf> {
    let home =
        context.home_dir().ok_or_else(|| Error::config_invalid("HOME is not set, so the SSO cache cannot be found"))?;
    Ok(home.join(".aws/sso/cache").join(format!("{}.json", hash::hex_sha1(sso.cached_as.as_bytes()))))
}

async fn cached(context: &Context, path: &Path) -> Option<Cached> {
    serde_json::from_slice(&context.file_read(&path.to_string_lossy()).await.ok()?).ok()
}

/// Returns the keys of the profile's role.
pub(super) async fn keys(context: &Context, sso: &Sso) -> Result<Credential> {
    let path = place(context, sso)?;
    let mut token = cached(context, &path).await.ok_or_else(|| login(sso, "was never done on this machine"))?;
    if token.left_s() < LEAD.as_secs() as i64 && sso.is_session {
        match renewed(context, sso, &token).await {
            Ok(new) => {
                keep(path, &new).await;
                token = new;
            }
            // Another process may have renewed the token first. Our refresh token is then invalid, but the new token of
            // that process is valid for us too.
            Err(error) => match cached(context, &path).await {
                Some(other) if other.left_s() > 0 => token = other,
                _ => return Err(error),
            },
        }
    }
    if token.left_s() <= 0 {
        return Err(login(sso, "has expired"));
    }
    let base = context.env_var("AWS_ENDPOINT_URL_SSO");
    let base = base.unwrap_or_else(|| format!("https://portal.sso.{}.amazonaws.com", sso.region));
    let quoted = |text: &str| percent_encode(text.as_bytes(), QUERY).to_string();
    let query = format!("role_name={}&account_id={}", quoted(&sso.role), quoted(&sso.account));
    let request = Request::builder()
        .uri(format!("{}/federation/credentials?{query}", base.trim_end_matches('/')))
        .header("x-amz-sso_bearer_token", &token.access_token)
        .body(Bytes::new())
        .map_err(|_| Error::config_invalid("the SSO portal's address or token is not valid"))?;
    let answer = context.http_send(request).await?;
    match answer.status().as_u16() {
        200 => {}
        401 => return Err(login(sso, "is no longer accepted")),
        status => {
            let problem =
                format!("the SSO portal returned HTTP {status} for role {} of account {}", sso.role, sso.account);
            return Err(Error::permission_denied(problem).set_retryable(status == 429 || status >= 500));
        }
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Role {
        access_key_id: String,
        secret_access_key: String,
        session_token: String,
        /// Expiry time in milliseconds since the Unix epoch.
        expiration: i64,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        role_credentials: Role,
    }
    let odd = || Error::unexpected("the SSO portal's response contains no keys");
    let Answer { role_credentials: role } = serde_json::from_slice(answer.body()).map_err(|_| odd())?;
    Ok(Credential {
        access_key_id: role.access_key_id,
        secret_access_key: role.secret_access_key,
        session_token: Some(role.session_token),
        expires_in: Some(Timestamp::from_millisecond(role.expiration).map_err(|_| odd())?),
    })
}

async fn renewed(context: &Context, sso: &Sso, old: &Cached) -> Result<Cached> {
    let (Some(client), Some(secret), Some(refresh)) = (&old.client_id, &old.client_secret, &old.refresh_token) else {
        return Err(login(sso, "has expired and cannot be renewed"));
    };
    let base = context.env_var("AWS_ENDPOINT_URL_SSO_OIDC");
    let base = base.unwrap_or_else(|| format!("https://oidc.{}.amazonaws.com", sso.region));
    let body = serde_json::json!({
        "clientId": client, "clientSecret": secret, "grantType": "refresh_token", "refreshToken": refresh,
    });
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("{}/token", base.trim_end_matches('/')))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Bytes::from(body.to_string()))
        .map_err(|_| Error::config_invalid("the address of the SSO token service is not a valid URL"))?;
    let answer = context.http_send(request).await?;
    if !answer.status().is_success() {
        return Err(login(sso, &format!("could not be renewed ({})", answer.status().as_u16())));
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        access_token: String,
        expires_in: u64,
        refresh_token: Option<String>,
    }
    let answer: Answer = serde_json::from_slice(answer.body())
        .map_err(|_| Error::unexpected("the SSO token service's response contains no token"))?;
    let ends = Timestamp::now() + Duration::from_secs(answer.expires_in);
    Ok(Cached {
        access_token: answer.access_token,
        expires_at: ends.format_rfc3339_zulu(),
        refresh_token: answer.refresh_token.or_else(|| Some(refresh.clone())),
        ..old.clone()
    })
}

/// Saves the new token as the AWS CLI does: atomically, and readable only by this user. Errors are ignored, because the
/// token in memory can still be used.
async fn keep(path: PathBuf, token: &Cached) {
    let Ok(json) = serde_json::to_vec(token) else { return };
    let _ = tokio::task::spawn_blocking(move || {
        use std::io::Write;
        let mut file = tempfile::NamedTempFile::new_in(path.parent()?).ok()?; // created with mode 0600
        file.write_all(&json).ok()?;
        file.persist(&path).ok()
    })
    .await;
}
