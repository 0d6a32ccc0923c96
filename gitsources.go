package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/stack-controller/stack-controller/internal/artifact"
	"github.com/stack-controller/stack-controller/internal/git"
	"github.com/stack-controller/stack-controller/internal/source"
)

// maxKnownHosts bounds the file of known hosts, in bytes. It has room for ten thousand servers.
const maxKnownHosts = 4 << 20

// gitOptions say how git servers are asked.
type gitOptions struct {
	timeout        time.Duration
	checkout       time.Duration
	knownHostsFile string
	knownHosts     []byte // of knownHostsFile
}

func (o *gitOptions) bindFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.timeout, "git-timeout", git.DefaultTimeout, "The timeout of one question to a git server.")
	fs.DurationVar(&o.checkout, "git-checkout-timeout", git.DefaultCheckoutTimeout, "The timeout of a checkout of a git commit.")
	fs.StringVar(&o.knownHostsFile, "git-known-hosts-file", "",
		"A file with the public keys of ssh servers, as OpenSSH has them, for all git sources beside those that they name themselves.")
}

// read reads the known hosts. They are public; what they say decides which servers private keys are used with.
func (o *gitOptions) read() error {
	if o.knownHostsFile == "" {
		return nil
	}
	info, err := os.Stat(o.knownHostsFile)
	if err == nil && info.Size() > maxKnownHosts {
		err = errors.New("the file is too large")
	}
	if err == nil {
		o.knownHosts, err = os.ReadFile(o.knownHostsFile)
	}
	if err != nil {
		return fmt.Errorf("--git-known-hosts-file: %w", err)
	}
	return nil
}

// addGit adds what follows git repositories to the manager.
func addGit(mgr ctrl.Manager, o *options) (*source.Git, error) {
	repositories := source.NewGit(source.GitOptions{
		Live:            mgr.GetAPIReader(),
		KnownHosts:      o.git.knownHosts,
		Timeout:         o.git.timeout,
		CheckoutTimeout: o.git.checkout,
		Jitter:          float64(o.jitter.Percentage) / 100,
		Limits:          artifactLimits(o.artifacts),
		Log:             ctrl.Log.WithName("git"),
	})
	if err := mgr.Add(repositories); err != nil {
		return nil, fmt.Errorf("add the git repositories: %w", err)
	}
	return repositories, nil
}

func artifactLimits(o artifactOptions) artifact.Limits {
	return artifact.Limits{MaxDownloadSize: o.maxSize.Value(), MaxUnpackedSize: o.maxUnpackedSize.Value(), MaxEntries: o.maxEntries}
}
