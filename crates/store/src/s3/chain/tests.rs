// SPDX-License-Identifier: Apache-2.0
//! Tests each AWS credential source against recorded responses of its service.

use std::collections::HashMap;
use std::path::Path;

use penstock_types::Error;

use super::super::sign::Sign;
use crate::StoreSettings;
use crate::credentials::test_token_server::{TestTokenServer, head, in_s, variables};

const STS: &str = "<AssumeRoleResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleResult>\
    <Credentials><AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>rs</SecretAccessKey><SessionToken>role-token\
    </SessionToken><Expiration>EXPIRES</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>";
const KEYS: &str = r#"{"AccessKeyId":"ASIABOX","SecretAccessKey":"bs","Token":"box-token","Expiration":"EXPIRES","Code":"Success","Message":""}"#;

/// Returns the recorded response to a request.
fn recorded(request: &str) -> (u16, String) {
    let line = request.lines().next().unwrap_or_default();
    let hour = in_s(3600);
    if line.starts_with("POST /token ") {
        return match request.contains("\"refreshToken\":\"refresh-1\"") {
            true => (200, r#"{"accessToken":"access-2","expiresIn":28800,"refreshToken":"refresh-2"}"#.to_owned()),
            false => (400, r#"{"error":"invalid_grant","secret":"refresh-secret"}"#.to_owned()),
        };
    }
    if line.starts_with("GET /federation/credentials?role_name=reader&account_id=12 ") {
        let known = ["access-1", "access-2"].iter().any(|token| request.contains(token));
        let ends_ms = (penstock_types::unix_now().as_secs() + 3600) * 1000;
        return match known {
            true => (
                200,
                format!(
                    r#"{{"roleCredentials":{{"accessKeyId":"ASIASSO","secretAccessKey":"ss","sessionToken":"sso-token","expiration":{ends_ms}}}}}"#
                ),
            ),
            false => (401, r#"{"message":"Session token not found or invalid"}"#.to_owned()),
        };
    }
    if line.starts_with("POST / ") && request.contains("Action=AssumeRole") {
        return match request.contains("token-of-a-stranger") {
            true => (403, "<ErrorResponse><Error><Code>InvalidIdentityToken</Code><Message>token-of-a-stranger</Message></Error></ErrorResponse>".to_owned()),
            false => (200, STS.replace("EXPIRES", &hour)),
        };
    }
    match line {
        "GET /box HTTP/1.1" if request.to_lowercase().contains("authorization: box-secret") => {
            (200, KEYS.replace("EXPIRES", &hour))
        }
        "PUT /latest/api/token HTTP/1.1" => (200, "imds-token".to_owned()),
        "GET /latest/meta-data/iam/security-credentials/ HTTP/1.1" => (200, "node".to_owned()),
        "GET /latest/meta-data/iam/security-credentials/node HTTP/1.1" => (200, KEYS.replace("EXPIRES", &hour)),
        _ => (404, String::new()),
    }
}

fn sign(env: &HashMap<String, String>) -> Sign {
    let settings = StoreSettings::from_env(env).unwrap().s3;
    Sign::new(&settings, settings.region.as_deref().unwrap_or("us-east-1"), &crate::transport::client::Http::new())
}

/// Returns the access key and the session token that sign a request.
async fn signed(env: &HashMap<String, String>) -> Result<(String, String), Error> {
    let mut request = head("https://b.example/k");
    sign(env).sign(&mut request, "s3://b/k").await?;
    let text = |name: &str| request.headers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let key = text("authorization").split("Credential=").nth(1).unwrap().split('/').next().unwrap().to_owned();
    Ok((key, text("x-amz-security-token")))
}

fn files(home: &Path, config: &str, keys: &str) {
    std::fs::create_dir_all(home.join(".aws/sso/cache")).unwrap();
    std::fs::write(home.join(".aws/config"), config.replace("HOME", home.to_str().unwrap())).unwrap();
    std::fs::write(home.join(".aws/credentials"), keys).unwrap();
}

const SSO: &str = "[sso-session lab]\nsso_start_url = https://lab.example\nsso_region = eu-west-1\n[profile team]\n\
    sso_session = lab\nsso_account_id = 12\nsso_role_name = reader\n";
const ENDS: [(&str, &str); 4] = [
    ("AWS_ENDPOINT_URL_SSO", "DESK"),
    ("AWS_ENDPOINT_URL_SSO_OIDC", "DESK"),
    ("AWS_ENDPOINT_URL_STS", "DESK"),
    ("AWS_PROFILE", "team"),
];

fn cache(home: &Path, access: &str, refresh: &str, left_s: i64) -> std::path::PathBuf {
    // The AWS CLI names the cache file after the SHA-1 of the session name (`lab`).
    let path = home.join(".aws/sso/cache").join(format!("{}.json", reqsign_core::hash::hex_sha1(b"lab")));
    let settings = serde_json::json!({
        "startUrl": "https://lab.example", "region": "eu-west-1", "accessToken": access, "expiresAt": in_s(left_s),
        "clientId": "c", "clientSecret": "cs", "registrationExpiresAt": in_s(1 << 20), "refreshToken": refresh,
    });
    std::fs::write(&path, settings.to_string()).unwrap();
    path
}

#[tokio::test]
async fn test_sso_session_is_renewed_and_filed_for_others() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    files(home.path(), SSO, "");
    let path = cache(home.path(), "access-0", "refresh-1", -10);
    let env = variables(&ENDS, &server, home.path());
    assert_eq!(signed(&env).await.unwrap(), ("ASIASSO".to_owned(), "sso-token".to_owned()));
    let kept: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!((kept["accessToken"].as_str(), kept["refreshToken"].as_str()), (Some("access-2"), Some("refresh-2")));
    assert_eq!(kept["startUrl"], "https://lab.example", "what others wrote there is kept");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
    assert_eq!(mode & 0o777, 0o600);
    // The next process finds the renewed token and renews nothing.
    signed(&env).await.unwrap();
    assert_eq!(server.seen().iter().filter(|request| request.starts_with("POST /token")).count(), 1);
}

#[tokio::test]
async fn test_sso_login_that_is_over_says_how_to_log_in_and_asks_nobody_else() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    files(home.path(), SSO, "");
    let mut env = variables(&ENDS, &server, home.path());
    env.insert("AWS_CONTAINER_CREDENTIALS_FULL_URI".to_owned(), format!("{}/box", server.url));
    env.insert("AWS_CONTAINER_AUTHORIZATION_TOKEN".to_owned(), "box-secret".to_owned());
    for prepare in [false, true] {
        if prepare {
            cache(home.path(), "access-0", "refresh-spent", -10);
        }
        let error = signed(&env).await.unwrap_err();
        assert_eq!(error.code(), "denied");
        assert!(error.to_string().contains("aws sso login --sso-session lab"), "{error}");
        assert!(!error.to_string().contains("secret") && !error.to_string().contains("refresh-"), "{error}");
    }
    assert!(server.seen().iter().all(|request| !request.starts_with("GET /box")), "the container is somebody else");
}

#[tokio::test]
async fn test_roles_by_web_identity_and_by_another_profile() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    std::fs::write(home.path().join("token"), "token-of-ours\n").unwrap();
    let irsa = [
        ("AWS_ROLE_ARN", "arn:aws:iam::12:role/r"),
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "HOME/token"),
        ("AWS_ENDPOINT_URL_STS", "DESK"),
    ];
    let env = variables(&irsa, &server, home.path());
    assert_eq!(signed(&env).await.unwrap(), ("ASIAROLE".to_owned(), "role-token".to_owned()));
    let asked = server.seen().pop().unwrap();
    assert!(
        asked.contains("WebIdentityToken=token-of-ours")
            && asked.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A12%3Arole%2Fr")
    );
    assert!(!asked.to_lowercase().contains("authorization"), "who the token speaks for is not asked with other keys");

    files(
        home.path(),
        "[profile team]\nrole_arn = arn:aws:iam::1:role/a\nsource_profile = middle\nexternal_id = x y\n\
         [profile middle]\nrole_arn = arn:aws:iam::1:role/b\nsource_profile = keys\n",
        "[keys]\naws_access_key_id = AKIAKEYS\naws_secret_access_key = s\n",
    );
    let env = variables(&ENDS, &server, home.path());
    assert_eq!(signed(&env).await.unwrap().0, "ASIAROLE");
    let seen = server.seen();
    let (inner, outer) = (&seen[seen.len() - 2], &seen[seen.len() - 1]);
    assert!(inner.contains("Credential=AKIAKEYS/") && inner.contains("role%2Fb"), "{inner}");
    assert!(outer.contains("Credential=ASIAROLE/") && outer.contains("ExternalId=x%20y"), "{outer}");
    assert!(outer.contains("/us-east-1/sts/aws4_request"));
}

#[tokio::test]
async fn test_role_refused_shows_the_code_and_not_the_token() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    std::fs::write(home.path().join("token"), "token-of-a-stranger").unwrap();
    let pairs =
        [("AWS_ROLE_ARN", "arn:r"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "HOME/token"), ("AWS_ENDPOINT_URL_STS", "DESK")];
    let error = signed(&variables(&pairs, &server, home.path())).await.unwrap_err().to_string();
    assert!(error.contains("InvalidIdentityToken") && !error.contains("stranger"), "{error}");
}

#[tokio::test]
async fn test_container_is_asked_where_its_variables_are_set() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    std::fs::write(home.path().join("pod"), "box-secret\n").unwrap();
    let pod =
        [("AWS_CONTAINER_CREDENTIALS_FULL_URI", "DESK/box"), ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "HOME/pod")];
    let env = variables(&pod, &server, home.path());
    assert_eq!(signed(&env).await.unwrap(), ("ASIABOX".to_owned(), "box-token".to_owned()));
    // The token is not sent to a host outside of the container endpoints.
    let mut env = env;
    env.insert("AWS_CONTAINER_CREDENTIALS_FULL_URI".to_owned(), "http://collector.example/box".to_owned());
    assert!(signed(&env).await.unwrap_err().to_string().contains("no credentials in"));
}

#[tokio::test]
async fn instance_metadata_is_asked_only_if_enabled() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    let mut env = variables(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", "DESK")], &server, home.path());
    assert_eq!(signed(&env).await.unwrap_err().code(), "denied");
    assert!(server.seen().is_empty(), "{:?}", server.seen());
    env.insert("PENSTOCK_S3_IMDS".to_owned(), "1".to_owned());
    assert_eq!(signed(&env).await.unwrap().0, "ASIABOX");
}

fn program(home: &Path, text: &str) {
    let path = home.join("a program");
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}

#[tokio::test]
async fn test_process_with_quotes_runs_and_one_that_fails_is_not_quoted() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    let give = format!(
        r#"echo "{{\"Version\":1,\"AccessKeyId\":\"$1\",\"SecretAccessKey\":\"s\",\"Expiration\":\"{}\"}}""#,
        in_s(900)
    );
    program(home.path(), &give);
    files(home.path(), "[profile team]\ncredential_process = \"HOME/a program\" 'AK IA'\n", "");
    let env = variables(&ENDS, &server, home.path());
    assert_eq!(signed(&env).await.unwrap().0, "AK IA");
    program(home.path(), "echo out-secret; echo err-secret >&2; exit 3");
    let error = signed(&env).await.unwrap_err().to_string();
    assert!(error.contains("ended with 3") && !error.contains("secret"), "{error}");
}

#[tokio::test]
async fn test_profile_that_is_nowhere_is_named() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    let error = signed(&variables(&ENDS, &server, home.path())).await.unwrap_err();
    assert_eq!(error.code(), "config");
    assert!(error.to_string().contains("AWS_PROFILE is team, but"), "{error}");
}

#[tokio::test]
async fn test_all_stores_of_a_process_ask_once() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    std::fs::write(home.path().join("token"), "token-of-ours").unwrap();
    let pairs =
        [("AWS_ROLE_ARN", "arn:r"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "HOME/token"), ("AWS_ENDPOINT_URL_STS", "DESK")];
    let env = variables(&pairs, &server, home.path());
    let signs: Vec<Sign> = (0..4).map(|_| sign(&env)).collect();
    let work = (0..64).map(|at| {
        let sign = &signs[at % 4];
        async move { sign.sign(&mut head("https://b.example/k"), "s3://b/k").await.unwrap() }
    });
    futures::future::join_all(work).await;
    assert_eq!(server.seen().len(), 1);
}
