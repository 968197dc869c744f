//! Credentials, region and endpoint of the AWS profile files, `~/.aws/credentials` and
//! `~/.aws/config`.
//!
//! Only what a profile says itself: keys, `region`, `endpoint_url`. A profile that names another
//! way to get credentials (a role, single sign-on, a process) is refused by name.
//!
//! Variables come first. With credentials of variables, a profile gives region and endpoint only,
//! and a file that cannot be used is no error. Key and token are always of one source.
//!
//! Secrets are in no error and have no `Debug`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What a profile says.
#[derive(Default)]
pub(crate) struct Profile {
    pub(crate) credentials: Option<Credentials>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint_url: Option<String>,
}

/// Credentials of one file.
pub(crate) struct Credentials {
    pub(crate) access_key_id: String,
    pub(crate) secret_access_key: String,
    pub(crate) session_token: Option<String>,
}

/// Keys of ways to credentials that are not supported.
const OTHER_WAYS: [&str; 6] = [
    "role_arn",
    "sso_session",
    "sso_start_url",
    "login_session",
    "credential_process",
    "web_identity_token_file",
];

/// The content of a file; `None` if there is none.
type Read<'a> = &'a dyn Fn(&Path) -> io::Result<Option<String>>;
/// A variable of the environment.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The settings of a section.
type Settings = BTreeMap<String, String>;

/// Finds the profile that `AWS_PROFILE` names, or the default one.
///
/// # Errors
/// If its credentials are needed, and they cannot be used, or `AWS_PROFILE` names no profile, or a
/// file cannot be read that a variable names, or that must have the named profile.
pub(crate) fn find(variable: Variable<'_>, read: Read<'_>) -> Result<Profile, String> {
    let given = |name: &str| variable(name).filter(|value| !value.is_empty());
    let named = given("AWS_PROFILE");
    let name = named.as_deref().unwrap_or("default");
    let needs_credentials = !has_credentials(variable, named.is_some());
    let parsed = |file: &str, default: &str, sections: &[&str]| {
        let home = || given("HOME").map(|home| Path::new(&home).join(default));
        let chosen = given(file).map(PathBuf::from);
        let is_wanted = needs_credentials && (named.is_some() || chosen.is_some());
        let Some(path) = chosen.or_else(home) else { return Ok(None) };
        match read(&path) {
            // The first of them that the file has.
            Ok(text) => Ok(text
                .and_then(|text| sections.iter().find_map(|section| section_of(&text, section)))),
            Err(error) if is_wanted => {
                let path = path.display();
                Err(format!("cannot read {path}: {error}; check the file, AWS_PROFILE and {file}"))
            }
            Err(error) => {
                let path = path.display();
                tracing::debug!(%path, %error, "a profile file cannot be read, and is left out");
                Ok(None)
            }
        }
    };
    let section = format!("profile {name}");
    let sections = match name {
        // `[default]` is ignored beside `[profile default]`.
        "default" => &[&*section, name][..],
        _ => &[&*section],
    };
    let config = parsed("AWS_CONFIG_FILE", ".aws/config", sections)?;
    let shared = parsed("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", &[name])?;
    if needs_credentials
        && config.is_none()
        && shared.is_none()
        && let Some(name) = &named
    {
        return Err(format!("there is no profile {name}; check AWS_PROFILE"));
    }
    // Those of the credentials file win.
    let files = [shared.unwrap_or_default(), config.unwrap_or_default()];
    let setting = |key: &str| files.iter().find_map(|file| file.get(key)).cloned();
    let credentials = if needs_credentials { credentials_of(name, &files)? } else { None };
    Ok(Profile { credentials, region: setting("region"), endpoint_url: setting("endpoint_url") })
}

/// Whether variables say who asks. If one names a profile, only keys come before it: a platform may
/// set the others for all its processes.
fn has_credentials(variable: Variable<'_>, names_profile: bool) -> bool {
    let is_set = |name: &str| variable(name).is_some();
    let skips_signature = variable("AWS_SKIP_SIGNATURE").is_some_and(|value| {
        ["1", "true", "on", "yes", "y"].contains(&value.to_ascii_lowercase().as_str())
    });
    let web_identity = is_set("AWS_WEB_IDENTITY_TOKEN_FILE") && is_set("AWS_ROLE_ARN");
    let container = is_set("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        || is_set("AWS_CONTAINER_CREDENTIALS_FULL_URI")
            && is_set("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    is_set("AWS_ACCESS_KEY_ID") || skips_signature || !names_profile && (web_identity || container)
}

/// The credentials of a profile: key, secret and token of the first file that has the key.
fn credentials_of(name: &str, files: &[Settings; 2]) -> Result<Option<Credentials>, String> {
    let has = |key: &str| files.iter().any(|file| file.contains_key(key));
    // The AWS tools take most of them although there are keys.
    if let Some(way) = OTHER_WAYS.into_iter().find(|key| has(key)) {
        return Err(format!(
            "profile {name} gets its credentials by {way}; of a profile, only keys are supported, \
             and no role (role_arn with source_profile or credential_source), single sign-on \
             (sso_session), login, process or web identity; set AWS_* variables, for example by \
             `aws configure export-credentials --profile {name} --format env`"
        ));
    }
    let text = || {
        format!("profile {name} needs both aws_access_key_id and aws_secret_access_key in one file")
    };
    let Some(file) = files.iter().find(|file| file.contains_key("aws_access_key_id")) else {
        return if has("aws_secret_access_key") { Err(text()) } else { Ok(None) };
    };
    let setting = |key: &str| file.get(key).cloned();
    Ok(Some(Credentials {
        access_key_id: setting("aws_access_key_id").ok_or_else(text)?,
        secret_access_key: setting("aws_secret_access_key").ok_or_else(text)?,
        session_token: setting("aws_session_token").filter(|token| !token.is_empty()),
    }))
}

/// The settings of a section; `None` if the file has none of this name. Nested settings, which are
/// indented, are left out.
fn section_of(text: &str, section: &str) -> Option<Settings> {
    let (mut found, mut within) = (None::<Settings>, false);
    for line in text.lines() {
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            within = name.split_whitespace().eq(section.split_whitespace());
            if within {
                found.get_or_insert_default();
            }
        } else if let (true, Some((key, value))) = (within, line.split_once('=')) {
            // A comment begins after a space.
            let value = value.split(" #").next().unwrap_or(value);
            let value = value.split(" ;").next().unwrap_or(value).trim();
            let settings = found.get_or_insert_default();
            settings.insert(key.trim().to_lowercase(), value.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "# people's\n[default]\naws_access_key_id = ONE\n\
        aws_secret_access_key=secret+/=one\n\n[work]\naws_access_key_id=TWO\n\
        aws_secret_access_key = two ; not three\naws_session_token = token\n[half]\n\
        aws_access_key_id = THREE\n[split]\naws_access_key_id=FOUR\naws_secret_access_key=four\n\
        [base]\naws_access_key_id=FIVE\naws_secret_access_key=five\n";
    const CONFIG: &str = "[default]\nregion = eu-1 # near\ns3 =\n  endpoint_url = nested\n\
        [profile work]\nregion=us-2\nendpoint_url = https://s3.example.com\n\
        [profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = default\n\
        [profile half]\naws_secret_access_key=three\n\
        [profile split]\naws_access_key_id=OTHER\naws_secret_access_key=other\n\
        aws_session_token=stale\n[profile base]\nrole_arn=arn:aws:iam::1:role/y\n\
        source_profile=base\n[profile config]\naws_access_key_id=SIX\n\
        aws_secret_access_key=six\naws_session_token=token-six\n";

    fn found(variables: &[(&str, &str)]) -> Result<Profile, String> {
        let variable = |name: &str| {
            let all = [("HOME", "/people/me")];
            let mut all = variables.iter().chain(&all);
            all.find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let read = |path: &Path| match path.to_str().unwrap() {
            "/people/me/.aws/credentials" => Ok(Some(CREDENTIALS.to_owned())),
            "/people/me/.aws/config" | "/etc/config" => Ok(Some(CONFIG.to_owned())),
            "/secret" | "/people/other/.aws/config" => Err(io::ErrorKind::PermissionDenied.into()),
            "/people/other/.aws/credentials" => Err(io::ErrorKind::InvalidData.into()),
            _ => Ok(None),
        };
        find(&variable, &read)
    }

    /// Key, secret and token.
    type Found = (String, String, Option<String>);

    fn credentials(variables: &[(&str, &str)]) -> Option<Found> {
        let found = found(variables).unwrap_or_else(|error| panic!("{variables:?}: {error}"));
        let credentials = found.credentials?;
        let Credentials { access_key_id, secret_access_key, session_token } = credentials;
        Some((access_key_id, secret_access_key, session_token))
    }

    fn key_of(key: &str, secret: &str, token: Option<&str>) -> Option<Found> {
        Some((key.to_owned(), secret.to_owned(), token.map(str::to_owned)))
    }

    fn refusal(variables: &[(&str, &str)]) -> String {
        found(variables).map(|_| ()).unwrap_err()
    }

    #[test]
    fn the_default_profile_is_that_of_both_files() {
        assert_eq!(credentials(&[]), key_of("ONE", "secret+/=one", None));
        let profile = found(&[]).unwrap();
        assert_eq!(profile.region.as_deref(), Some("eu-1"));
        assert_eq!(profile.endpoint_url, None);
    }

    #[test]
    fn the_default_profile_has_two_names_in_a_config_file() {
        let of = |config: &str| {
            let variable = |name: &str| match name {
                "AWS_CONFIG_FILE" => Some("/config".to_owned()),
                "AWS_SHARED_CREDENTIALS_FILE" => Some("/credentials".to_owned()),
                _ => None,
            };
            let read = |path: &Path| match path.to_str().unwrap() {
                "/config" => Ok(Some(config.to_owned())),
                // Not in this file.
                _ => Ok(Some("[profile default]\naws_access_key_id=A\n".to_owned())),
            };
            find(&variable, &read).unwrap().region
        };
        assert_eq!(of("[default]\nregion=one\n").as_deref(), Some("one"));
        assert_eq!(of("[profile default]\nregion=two\n").as_deref(), Some("two"));
        // The longer name wins, as a whole.
        for both in [
            "[default]\nregion=one\n[profile default]\nregion=two\n",
            "[ profile   default ]\nregion=two\n[default]\nregion=one\n",
        ] {
            assert_eq!(of(both).as_deref(), Some("two"), "{both}");
        }
        assert_eq!(of("[default]\nregion=one\n[profile default]\n").as_deref(), None);
        assert_eq!(of("[profile other]\nregion=three\n").as_deref(), None);
    }

    #[test]
    fn a_profile_is_chosen_by_name_and_files_by_path() {
        let work = [("AWS_PROFILE", "work")];
        assert_eq!(credentials(&work), key_of("TWO", "two", Some("token")));
        let profile = found(&work).unwrap();
        assert_eq!(profile.endpoint_url.as_deref(), Some("https://s3.example.com"));
        let elsewhere = [
            ("AWS_SHARED_CREDENTIALS_FILE", "/nowhere"),
            ("AWS_CONFIG_FILE", "/etc/config"),
            ("AWS_PROFILE", "work"),
        ];
        assert_eq!(credentials(&elsewhere), None);
        assert_eq!(found(&elsewhere).unwrap().region.as_deref(), Some("us-2"));
        let nothing = [("AWS_SHARED_CREDENTIALS_FILE", "/no"), ("AWS_CONFIG_FILE", "/no")];
        assert!(found(&nothing).unwrap().region.is_none());
    }

    #[test]
    fn variables_come_before_the_profile() {
        let mine = [("AWS_ACCESS_KEY_ID", "MINE"), ("AWS_PROFILE", "work")];
        assert_eq!(credentials(&mine), None);
        assert_eq!(found(&mine).unwrap().region.as_deref(), Some("us-2"));
    }

    #[test]
    fn roles_that_variables_name_come_before_the_default_profile() {
        let web = [("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"), ("AWS_ROLE_ARN", "arn")];
        let task = [("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/id")];
        let pod = [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1/id"),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/token"),
        ];
        for variables in [&web[..], &task, &pod, &[("AWS_SKIP_SIGNATURE", "true")]] {
            assert_eq!(credentials(variables), None, "{variables:?}");
            assert_eq!(found(variables).unwrap().region.as_deref(), Some("eu-1"));
        }
        // One alone names nobody.
        assert_eq!(credentials(&web[..1]), key_of("ONE", "secret+/=one", None));
        // A profile that was asked for is not passed over.
        let named = [web[0], web[1], ("AWS_PROFILE", "work")];
        assert_eq!(credentials(&named), key_of("TWO", "two", Some("token")));
    }

    #[test]
    fn a_key_and_a_token_of_two_files_are_not_mixed() {
        assert_eq!(credentials(&[("AWS_PROFILE", "split")]), key_of("FOUR", "four", None));
        let config = [("AWS_PROFILE", "config")];
        assert_eq!(credentials(&config), key_of("SIX", "six", Some("token-six")));
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name_and_without_secrets() {
        assert!(refusal(&[("AWS_PROFILE", "none")]).contains("no profile none"));
        for role in ["role", "base"] {
            let error = refusal(&[("AWS_PROFILE", role)]);
            assert!(error.contains("by role_arn; of a profile, only keys"), "{error}");
            assert!(error.contains("source_profile") && error.contains("sso_session"), "{error}");
        }
        let half = refusal(&[("AWS_PROFILE", "half")]);
        assert!(half.contains("needs both") && !half.contains("THREE"), "{half}");
        let unreadable = refusal(&[("AWS_CONFIG_FILE", "/secret")]);
        assert!(unreadable.contains("cannot read /secret"), "{unreadable}");
        let unreadable = refusal(&[("HOME", "/people/other"), ("AWS_PROFILE", "work")]);
        assert!(unreadable.contains("cannot read /people/other/.aws/config"), "{unreadable}");
    }

    #[test]
    fn files_that_nobody_needs_refuse_nothing() {
        // Variables have the credentials.
        let key = ("AWS_ACCESS_KEY_ID", "MINE");
        for other in
            [("HOME", "/people/other"), ("AWS_PROFILE", "none"), ("AWS_CONFIG_FILE", "/secret")]
        {
            assert_eq!(credentials(&[key, other]), None, "{other:?}");
        }
        // Nobody has asked for a profile.
        assert_eq!(credentials(&[("HOME", "/people/other")]), None);
        assert_eq!(credentials(&[key, ("AWS_PROFILE", "role")]), None);
    }
}
