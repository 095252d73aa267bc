//! PostgreSQL's server as it is installed, for a server of one's own.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use tempfile::TempDir;

/// The programs, and whom they run as.
pub(crate) struct Installation {
    pub(crate) binaries: PathBuf,
    owner: Option<Owner>,
}

/// Whom a server runs as where we are root: PostgreSQL refuses to be.
#[derive(Clone, Copy)]
struct Owner {
    user: u32,
    group: u32,
}

impl Installation {
    /// The newest that has these programs. `named`: the folder of the only one that counts.
    pub(crate) fn find(named: Option<PathBuf>, needed: &[&str]) -> Option<Self> {
        let candidates = named.map_or_else(candidates, |named| vec![named]);
        let mut candidates = candidates.into_iter();
        let binaries = candidates.find(|path| needed.iter().all(|name| path.join(name).is_file()))?;
        Some(Self { binaries, owner: owner() })
    }

    /// A program as the server's owner, in a folder that it may enter.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.join(program));
        command.current_dir("/").stdin(Stdio::null());
        #[cfg(unix)]
        if let Some(owner) = self.owner {
            std::os::unix::process::CommandExt::gid(&mut command, owner.group);
            std::os::unix::process::CommandExt::uid(&mut command, owner.user);
        }
        command
    }

    /// A throwaway folder of the owner's.
    pub(crate) fn folder(&self, prefix: &str) -> TempDir {
        // Another user may not be able to enter root's own folder for such things.
        let base = if self.owner.is_some() { PathBuf::from("/tmp") } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(base).unwrap();
        #[cfg(unix)]
        if let Some(owner) = self.owner {
            std::os::unix::fs::chown(folder.path(), Some(owner.user), Some(owner.group)).unwrap();
        }
        folder
    }
}

fn candidates() -> Vec<PathBuf> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut candidates: Vec<_> = installed.map(|version| version.path().join("bin")).collect();
    candidates.sort_by_key(|path| {
        let version = path.parent().and_then(Path::file_name).and_then(|name| name.to_str()?.parse::<u32>().ok());
        std::cmp::Reverse(version)
    });
    candidates.extend(pg_config(Path::new("pg_config"), "--bindir"));
    candidates.extend(std::env::var_os("PATH").iter().flat_map(std::env::split_paths));
    candidates
}

/// What an installation says of itself.
pub(crate) fn pg_config(program: &Path, question: &str) -> Option<PathBuf> {
    let output = Command::new(program).arg(question).stderr(Stdio::null()).output().ok()?;
    Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
}

fn owner() -> Option<Owner> {
    if id(&["-u"])? != 0 {
        return None;
    }
    let user = if id(&["-u", "postgres"]).is_some() { "postgres" } else { "nobody" };
    Some(Owner { user: id(&["-u", user])?, group: id(&["-g", user])? })
}

fn id(arguments: &[&str]) -> Option<u32> {
    let output = Command::new("id").args(arguments).stderr(Stdio::null()).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}
