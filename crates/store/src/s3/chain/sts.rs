// SPDX-License-Identifier: Apache-2.0
//! AWS's Security Token Service (STS): exchanges keys, or another provider's token, for the temporary keys of a role.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, header};
use percent_encoding::percent_encode;
use reqsign_aws_v4::{Credential, RequestSigner};
use reqsign_core::{Context, Error, Result, SignRequest, hash};

use crate::transport::{QUERY, xml};

/// Returns the endpoint of STS, and the region for which requests to it are signed.
pub(super) fn endpoint(context: &Context, region: &str) -> (String, String) {
    let named = context.env_var("AWS_ENDPOINT_URL_STS").or_else(|| context.env_var("AWS_ENDPOINT_URL"));
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    (named.unwrap_or_else(|| format!("https://sts.{region}.{domain}")), region.to_owned())
}

/// Returns the name of the session, which appears in AWS's logs.
fn session(context: &Context, given: Option<&str>) -> String {
    given
        .map(str::to_owned)
        .or_else(|| context.env_var("AWS_ROLE_SESSION_NAME"))
        .unwrap_or_else(|| "penstock".to_owned())
}

/// Calls `AssumeRole`. The request is signed with the credential `by`.
pub(super) async fn assume(
    context: &Context,
    region: &str,
    by: &Credential,
    role: &str,
    named: Option<&str>,
    external: Option<&str>,
) -> Result<Credential> {
    let name = session(context, named);
    let mut form = vec![("Action", "AssumeRole"), ("RoleArn", role), ("RoleSessionName", &name)];
    form.extend(external.map(|external| ("ExternalId", external)));
    ask(context, region, &form, Some(by)).await
}

/// Calls `AssumeRoleWithWebIdentity` with the token in `file`. Each call reads the file again, because the identity
/// provider replaces the token.
pub(super) async fn with_web_identity(
    context: &Context,
    region: &str,
    role: &str,
    named: Option<&str>,
    file: &str,
) -> Result<Credential> {
    let path = context.expand_home_dir(file).unwrap_or_else(|| file.to_owned());
    let token = context.file_read_as_string(&path).await;
    let token = token.map_err(|_| Error::config_invalid(format!("the token file {file} cannot be read")))?;
    let token = token.trim();
    if token.is_empty() {
        return Err(Error::config_invalid(format!("the token file {file} is empty")));
    }
    let name = session(context, named);
    let form = [
        ("Action", "AssumeRoleWithWebIdentity"),
        ("RoleArn", role),
        ("RoleSessionName", &name),
        ("WebIdentityToken", token),
    ];
    ask(context, region, &form, None).await
}

async fn ask(context: &Context, region: &str, form: &[(&str, &str)], by: Option<&Credential>) -> Result<Credential> {
    let (url, region) = endpoint(context, region);
    let mut body = String::from("Version=2011-06-15");
    for (name, value) in form {
        body += &format!("&{name}={}", percent_encode(value.as_bytes(), QUERY));
    }
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("{}/", url.trim_end_matches('/')))
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header("x-amz-content-sha256", hash::hex_sha256(body.as_bytes()))
        .body(())
        .map_err(|_| Error::config_invalid("the address of AWS's token service is not a valid URL"))?;
    let (mut head, ()) = request.into_parts();
    if let Some(by) = by {
        RequestSigner::new("sts", &region).sign_request(context, &mut head, Some(by), None).await?;
    } else {
        head.headers.insert(header::ACCEPT, HeaderValue::from_static("application/xml"));
    }
    let answer = context.http_send(Request::from_parts(head, Bytes::from(body))).await?;
    let (mut code, mut found) = (String::new(), Credential::default());
    let (mut token, mut ends) = (String::new(), String::new());
    let _ = xml::elements(answer.body(), |path, text| match path {
        [.., "Error", "Code"] => code = text.chars().filter(|c| c.is_ascii_alphanumeric()).take(64).collect(),
        [.., "Credentials", "AccessKeyId"] => found.access_key_id = text,
        [.., "Credentials", "SecretAccessKey"] => found.secret_access_key = text,
        [.., "Credentials", "SessionToken"] => token = text,
        [.., "Credentials", "Expiration"] => ends = text,
        _ => {}
    });
    let status = answer.status();
    let action = form.first().map_or("", |(_, action)| action);
    if !status.is_success() {
        // The error contains only the code, because the rest of the response may quote the request.
        let problem = format!("AWS's token service returned HTTP {} {code} for {action}", status.as_u16());
        let passing = status.is_server_error() || status.as_u16() == 429 || code.contains("Throttl");
        return Err(Error::permission_denied(problem).set_retryable(passing));
    }
    let ends =
        ends.parse().map_err(|_| Error::unexpected(format!("the response to {action} has no expiration time")))?;
    if found.access_key_id.is_empty() || found.secret_access_key.is_empty() || token.is_empty() {
        return Err(Error::unexpected(format!("the response to {action} has no keys")));
    }
    Ok(Credential { session_token: Some(token), expires_in: Some(ends), ..found })
}
