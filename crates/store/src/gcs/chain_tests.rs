// SPDX-License-Identifier: Apache-2.0
//! Tests Google's kinds of credentials against recorded responses of the token services.

use std::collections::HashMap;
use std::path::Path;

use penstock_types::Error;
use serde_json::json;

use super::authorize::Authorizer;
use crate::StoreSettings;
use crate::credentials::test_token_server::{TestTokenServer, head, variables};

fn recorded(request: &str) -> (u16, String) {
    let line = request.lines().next().unwrap_or_default();
    let given =
        |token: &str| (200, json!({"access_token": token, "expires_in": 3599, "token_type": "Bearer"}).to_string());
    match line {
        "POST /token HTTP/1.1" if request.contains("\"refresh_token\":\"refresh-1\"") => given("user-token"),
        "POST /token HTTP/1.1" if request.contains("grant-type%3Ajwt-bearer") => given("service-token"),
        "POST /token HTTP/1.1" => {
            (400, json!({"error": "invalid_grant", "error_description": "refresh-secret"}).to_string())
        }
        "POST /sts HTTP/1.1" if request.contains("subject_token=subject-1") => (
            200,
            json!({"access_token": "federated-token", "expires_in": 3599, "token_type": "Bearer",
                   "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})
            .to_string(),
        ),
        _ if line.starts_with("GET /computeMetadata/v1/instance/service-accounts/default/token") => given("node-token"),
        _ => (404, String::new()),
    }
}

async fn token(env: &HashMap<String, String>) -> Result<String, Error> {
    let settings = StoreSettings::from_env(env).unwrap().gcs;
    let authorizer = Authorizer::new(&settings, false);
    let mut last = String::new();
    for _ in 0..8 {
        let mut request = head("https://storage.example/storage/v1/b/b/o/k");
        authorizer.authorize(&mut request, "gs://b/k").await?;
        last = request.headers["authorization"].to_str().unwrap().to_owned();
    }
    Ok(last)
}

fn write(path: &Path, text: &serde_json::Value) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text.to_string()).unwrap();
}

fn user(server: &TestTokenServer, refresh: &str) -> serde_json::Value {
    json!({"type": "authorized_user", "client_id": "c", "client_secret": "cs", "refresh_token": refresh,
           "token_uri": format!("{}/token", server.url)})
}

#[tokio::test]
async fn test_user_of_gcloud_is_found_where_gcloud_writes_and_asked_once() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    write(&home.path().join(".config/gcloud/application_default_credentials.json"), &user(&server, "refresh-1"));
    assert_eq!(token(&variables(&[], &server, home.path())).await.unwrap(), "Bearer user-token");
    assert_eq!(server.seen().len(), 1);
    let moved = tempfile::tempdir().unwrap();
    write(&moved.path().join("application_default_credentials.json"), &user(&server, "refresh-1"));
    let mut env = variables(&[], &server, Path::new("/nowhere"));
    env.insert("CLOUDSDK_CONFIG".to_owned(), moved.path().to_str().unwrap().to_owned());
    assert_eq!(token(&env).await.unwrap(), "Bearer user-token");
}

#[tokio::test]
async fn user_login_expired_is_reported_and_no_other_source_is_asked() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    write(&home.path().join(".config/gcloud/application_default_credentials.json"), &user(&server, "refresh-old"));
    let metadata = server.url.replace("http://", "");
    let env = variables(&[("PENSTOCK_GS_METADATA", "1"), ("GCE_METADATA_HOST", &metadata)], &server, home.path());
    let error = token(&env).await.unwrap_err();
    assert_eq!(error.code(), "denied");
    let text = error.to_string();
    assert!(text.contains("gcloud auth application-default login") && !text.contains("refresh-"), "{text}");
    assert!(server.seen().iter().all(|request| !request.contains("computeMetadata")));
}

#[tokio::test]
async fn test_service_account_is_turned_into_one_token() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    let made = std::process::Command::new("openssl").args(["genpkey", "-algorithm", "RSA"]).output().unwrap();
    let key = String::from_utf8(made.stdout).unwrap();
    let text = json!({"type": "service_account", "client_email": "s@p.example", "private_key": key,
                      "token_uri": format!("{}/token", server.url)});
    write(&home.path().join("sa.json"), &text);
    let env = variables(&[("GOOGLE_APPLICATION_CREDENTIALS", "HOME/sa.json")], &server, home.path());
    assert_eq!(token(&env).await.unwrap(), "Bearer service-token");
    assert_eq!(server.seen().len(), 1, "one for eight requests");
}

#[tokio::test]
async fn test_external_account_exchanges_the_subject_of_its_file() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    std::fs::write(home.path().join("subject"), "subject-1").unwrap();
    for format in [json!(null), json!({"type": "text"})] {
        let mut source = json!({"file": home.path().join("subject")});
        if !format.is_null() {
            source["format"] = format;
        }
        let text = json!({"type": "external_account", "audience": "a", "token_url": format!("{}/sts", server.url),
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt", "credential_source": source});
        write(&home.path().join("ea.json"), &text);
        let env = variables(&[("GOOGLE_APPLICATION_CREDENTIALS", "HOME/ea.json")], &server, home.path());
        assert_eq!(token(&env).await.unwrap(), "Bearer federated-token");
    }
    // An external account file whose subject token comes from the metadata address is used only if the settings allow
    // that address.
    let text = json!({"type": "external_account", "audience": "a", "token_url": format!("{}/sts", server.url),
        "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "credential_source": {"url": "http://169.254.169.254/metadata/identity/oauth2/token"}});
    write(&home.path().join("ea.json"), &text);
    let env = variables(&[("GOOGLE_APPLICATION_CREDENTIALS", "HOME/ea.json")], &server, home.path());
    let error = token(&env).await.unwrap_err().to_string();
    assert!(error.contains("169.254.169.254 are disabled"), "{error}");
}

#[tokio::test]
async fn metadata_is_asked_only_if_enabled() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    let metadata = server.url.replace("http://", "");
    let mut env = variables(&[("GCE_METADATA_HOST", &metadata)], &server, home.path());
    assert!(token(&env).await.unwrap_err().to_string().contains("PENSTOCK_GS_ANONYMOUS=1"));
    assert!(server.seen().is_empty());
    env.insert("PENSTOCK_GS_METADATA".to_owned(), "1".to_owned());
    assert_eq!(token(&env).await.unwrap(), "Bearer node-token");
}

#[tokio::test]
async fn test_named_file_missing_is_reported() {
    let (server, home) = (TestTokenServer::start(recorded).await, tempfile::tempdir().unwrap());
    let env = variables(&[("GOOGLE_APPLICATION_CREDENTIALS", "HOME/nowhere.json")], &server, home.path());
    assert!(token(&env).await.unwrap_err().to_string().contains("cannot be read"));
    std::fs::write(home.path().join("nowhere.json"), "not json").unwrap();
    assert!(token(&env).await.unwrap_err().to_string().contains("contains no credentials"));
}
