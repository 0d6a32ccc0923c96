package operation

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/stack-controller/stack-controller/internal/file"
)

const (
	// credentialsVariable names the directory in which the CLI keeps the file with its logins.
	credentialsVariable = "PULUMI_CREDENTIALS_PATH"
	credentialsFile     = "credentials.json"
	// maxCredentials bounds the file, in bytes.
	maxCredentials = 1 << 20
)

// isolateLogins gives the operation a directory of its own for the CLI's logins, with a copy of those that exist. The CLI records every
// backend that it logs in to, with the token or the password in its URL, and none of that may stay on disk. Where people work beside the
// agent, the record stays, because their commands find the backend by it. It also stays where the user sets the directory. An operation that
// logs in by itself always gets an empty directory: its access token is for nobody else, and it uses no other.
func (o *operation) isolateLogins() error {
	known, isolated, err := o.knownLogins()
	if err != nil || !isolated {
		return err
	}
	dir := o.loginsDir()
	// A directory that a crash left is older than the known logins.
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return fmt.Errorf("create the directory of logins: %w", file.WithoutPath(err))
	}
	o.env[credentialsVariable] = dir
	if known == nil {
		return nil
	}
	return file.Write(filepath.Join(dir, credentialsFile), known)
}

// knownLogins returns the file with the logins that the operation begins with, nil for none. isolated is false if it uses those of all.
func (o *operation) knownLogins() (known []byte, isolated bool, err error) {
	if o.request.GetLogin() != nil {
		o.loginEnvironment()
		return nil, true, nil
	}
	if o.runner.options.Workspace != "" || o.env[credentialsVariable] != "" {
		return nil, false, nil
	}
	known, err = file.Read(filepath.Join(o.runner.pulumiHome(), credentialsFile), maxCredentials)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("read the logins of the pulumi CLI: %w", file.WithoutPath(err))
	}
	return known, true, nil
}

// loginsDir is the directory that isolateLogins makes.
func (o *operation) loginsDir() string { return filepath.Join(o.stack.Dir, "credentials") }

// removeCredentials removes what isolateLogins made.
func (o *operation) removeCredentials() {
	if o.stack == nil || o.env[credentialsVariable] != o.loginsDir() {
		return
	}
	if err := os.RemoveAll(o.loginsDir()); err != nil {
		o.log.Error(err, "the logins of the operation were not removed")
	}
}
