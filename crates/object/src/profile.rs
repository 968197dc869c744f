//! Credentials, region and endpoint of the AWS profile files, `~/.aws/credentials` and
//! `~/.aws/config`.
//!
//! Only what a profile says itself: keys, `region`, `endpoint_url`. A profile that names another
//! way to get credentials (a role, single sign-on, a process) is refused by name.
//!
//! Secrets are in no error and have no `Debug`.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What a profile says.
#[derive(Default)]
pub(crate) struct Profile {
    pub(crate) access_key_id: Option<String>,
    pub(crate) secret_access_key: Option<String>,
    pub(crate) session_token: Option<String>,
    pub(crate) region: Option<String>,
    pub(crate) endpoint_url: Option<String>,
}

/// Keys of ways to credentials that are not supported.
const OTHER_WAYS: [&str; 5] =
    ["role_arn", "sso_session", "sso_start_url", "credential_process", "web_identity_token_file"];

/// The content of a file; `None` if there is none.
type Read<'a> = &'a dyn Fn(&Path) -> io::Result<Option<String>>;
/// A variable of the environment.
type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Finds the profile that `AWS_PROFILE` names, or the default one. Credentials of variables come
/// first: then those of the profile are left out.
///
/// # Errors
/// If a file cannot be read, the named profile does not exist, or has no credentials that can be
/// used.
pub(crate) fn find(variable: Variable<'_>, read: Read<'_>) -> Result<Profile, String> {
    let named = variable("AWS_PROFILE").filter(|name| !name.is_empty());
    let name = named.as_deref().unwrap_or("default");
    let file = |name: &str, default: &str| match variable(name).filter(|path| !path.is_empty()) {
        Some(path) => Some(PathBuf::from(path)),
        None => variable("HOME").map(|home| Path::new(&home).join(default)),
    };
    let parsed = |path: Option<PathBuf>, section: &str| {
        let Some(path) = path else { return Ok(None) };
        let text = read(&path);
        let text = text.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        Ok::<_, String>(text.and_then(|text| section_of(&text, section)))
    };
    let section = match name {
        "default" => name.to_owned(),
        _ => format!("profile {name}"),
    };
    let config = parsed(file("AWS_CONFIG_FILE", ".aws/config"), &section)?;
    let credentials = parsed(file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"), name)?;
    if config.is_none() && credentials.is_none() {
        return match named {
            Some(name) => Err(format!("there is no profile {name}; check AWS_PROFILE")),
            None => Ok(Profile::default()),
        };
    }
    let mut found = config.unwrap_or_default();
    // Those of the credentials file win.
    found.extend(credentials.unwrap_or_default());
    let mut profile = Profile {
        access_key_id: found.remove("aws_access_key_id"),
        secret_access_key: found.remove("aws_secret_access_key"),
        session_token: found.remove("aws_session_token"),
        region: found.remove("region"),
        endpoint_url: found.remove("endpoint_url"),
    };
    if variable("AWS_ACCESS_KEY_ID").is_some() {
        (profile.access_key_id, profile.secret_access_key, profile.session_token) =
            (None, None, None);
        return Ok(profile);
    }
    match (profile.access_key_id.is_some(), profile.secret_access_key.is_some()) {
        (true, true) => Ok(profile),
        (false, false) => match OTHER_WAYS.iter().find(|key| found.contains_key(**key)) {
            Some(key) => Err(format!(
                "profile {name} gets its credentials by {key}, which is not supported; set AWS_* \
                 variables, for example by `aws configure export-credentials --format env`"
            )),
            None => Ok(profile),
        },
        _ => Err(format!("profile {name} needs both aws_access_key_id and aws_secret_access_key")),
    }
}

/// The settings of a section; `None` if the file has none of this name. Nested settings, which are
/// indented, are left out.
fn section_of(text: &str, section: &str) -> Option<BTreeMap<String, String>> {
    let (mut found, mut within) = (None::<BTreeMap<_, _>>, false);
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
        aws_access_key_id = THREE\n";
    const CONFIG: &str = "[default]\nregion = eu-1 # near\ns3 =\n  endpoint_url = nested\n\
        [profile work]\nregion=us-2\nendpoint_url = https://s3.example.com\n\
        [profile role]\nrole_arn = arn:aws:iam::1:role/x\nsource_profile = default\n";

    fn found(variables: &[(&str, &str)]) -> Result<Profile, String> {
        let variable = |name: &str| {
            let all = [("HOME", "/people/me")];
            let mut all = all.iter().chain(variables);
            all.find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let read = |path: &Path| match path.to_str().unwrap() {
            "/people/me/.aws/credentials" => Ok(Some(CREDENTIALS.to_owned())),
            "/people/me/.aws/config" | "/etc/config" => Ok(Some(CONFIG.to_owned())),
            "/secret" => Err(io::ErrorKind::PermissionDenied.into()),
            _ => Ok(None),
        };
        find(&variable, &read)
    }

    fn refusal(variables: &[(&str, &str)]) -> String {
        found(variables).map(|_| ()).unwrap_err()
    }

    #[test]
    fn the_default_profile_is_that_of_both_files() {
        let profile = found(&[]).unwrap();
        assert_eq!(profile.access_key_id.as_deref(), Some("ONE"));
        assert_eq!(profile.secret_access_key.as_deref(), Some("secret+/=one"));
        assert_eq!(profile.session_token, None);
        assert_eq!(profile.region.as_deref(), Some("eu-1"));
        assert_eq!(profile.endpoint_url, None);
    }

    #[test]
    fn a_profile_is_chosen_by_name_and_files_by_path() {
        let profile = found(&[("AWS_PROFILE", "work")]).unwrap();
        assert_eq!(profile.access_key_id.as_deref(), Some("TWO"));
        assert_eq!(profile.secret_access_key.as_deref(), Some("two"));
        assert_eq!(profile.session_token.as_deref(), Some("token"));
        assert_eq!(profile.endpoint_url.as_deref(), Some("https://s3.example.com"));
        let elsewhere = [
            ("AWS_SHARED_CREDENTIALS_FILE", "/nowhere"),
            ("AWS_CONFIG_FILE", "/etc/config"),
            ("AWS_PROFILE", "work"),
        ];
        let profile = found(&elsewhere).unwrap();
        assert_eq!((profile.access_key_id, profile.region.as_deref()), (None, Some("us-2")));
        let nothing = [("AWS_SHARED_CREDENTIALS_FILE", "/no"), ("AWS_CONFIG_FILE", "/no")];
        assert!(found(&nothing).unwrap().region.is_none());
    }

    #[test]
    fn variables_come_before_the_profile() {
        let profile = found(&[("AWS_ACCESS_KEY_ID", "MINE"), ("AWS_PROFILE", "work")]).unwrap();
        assert!(profile.access_key_id.is_none() && profile.session_token.is_none());
        assert!(profile.secret_access_key.is_none());
        assert_eq!(profile.region.as_deref(), Some("us-2"));
    }

    #[test]
    fn what_cannot_be_used_is_refused_by_name_and_without_secrets() {
        assert!(refusal(&[("AWS_PROFILE", "none")]).contains("no profile none"));
        assert!(refusal(&[("AWS_PROFILE", "role")]).contains("by role_arn, which is not"));
        let half = refusal(&[("AWS_PROFILE", "half")]);
        assert!(half.contains("needs both") && !half.contains("THREE"), "{half}");
        let unreadable = refusal(&[("AWS_CONFIG_FILE", "/secret")]);
        assert!(unreadable.contains("cannot read /secret"), "{unreadable}");
    }
}
