package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/config"
)

const (
	// maxSubmodules bounds the submodules of a checkout, at all depths together; maxSubmoduleDepth how deep they are nested.
	maxSubmodules     = 50
	maxSubmoduleDepth = 5

	// maxModulesFile bounds a .gitmodules file in bytes, maxModulesSections its sections. The time that the decoder takes is quadratic in
	// the number of sections.
	maxModulesFile     = 256 << 10
	maxModulesSections = 1000

	modulesName = ".gitmodules"
)

var errModules = &knownError{Submodule, "the file .gitmodules cannot be used"}

// readURLs sets the URLs of the submodules from the .gitmodules file of the tree at the path, which was walked before.
func (l *listing) readURLs(ctx context.Context, p *pack, at string, modules []module) error {
	name := path.Join(at, modulesName)
	found := slices.IndexFunc(l.entries, func(e entry) bool { return e.path == name && e.pack == p })
	if found < 0 {
		return nil
	}
	file, err := p.get(ctx, p.objects[l.entries[found].object].hash, plumbing.BlobObject, maxModulesFile)
	if err != nil {
		return fmt.Errorf("%w: %w", errModules, err)
	}
	urls, err := parseModules(file)
	for n, m := range modules {
		modules[n].url = urls[strings.TrimPrefix(strings.TrimPrefix(m.path, at), "/")]
	}
	return err
}

// parseModules returns the URLs in a .gitmodules file, by path. If several submodules have the same path, the last one is used, as in git.
func parseModules(file []byte) (map[string]string, error) {
	if bytes.Count(file, []byte("[")) > maxModulesSections {
		return nil, fmt.Errorf("%w: it has more than %d sections", errModules, maxModulesSections)
	}
	modules := config.New()
	if err := config.NewDecoder(bytes.NewReader(bytes.TrimPrefix(file, []byte("\xef\xbb\xbf")))).Decode(modules); err != nil {
		return nil, fmt.Errorf("%w: it cannot be parsed", errModules)
	}
	urls := map[string]string{}
	for _, module := range modules.Section("submodule").Subsections {
		urls[path.Clean(module.Option("path"))] = module.Option("url")
	}
	return urls, nil
}

// submodule returns the part for the module. Its errors are errors of the parent.
func (b *checkout) submodule(parent *part, m module) (*part, error) {
	b.modules++
	child := &part{sha: m.sha, path: m.path, parent: parent, depth: parent.depth + 1}
	refuse := func(format string, args ...any) (*part, error) {
		return nil, parent.fail(Submodule, "submodule %s: %s", shownPath(m.path), fmt.Sprintf(format, args...))
	}
	switch {
	case m.url == "":
		return refuse("the file .gitmodules has no URL for it")
	case child.depth > maxSubmoduleDepth:
		return refuse("it is more than %d levels deep", maxSubmoduleDepth)
	case b.modules > maxSubmodules:
		return refuse("there are more than %d submodules", maxSubmodules)
	}
	remote, err := parent.submoduleRemote(m.url)
	if err == nil {
		child.repository, err = b.client.prepare(remote)
	}
	if err != nil {
		return nil, child.wrapOnce(err)
	}
	// The secrets of the parent, which its server may have echoed, must not be in the messages of the submodule either.
	child.secrets.values = append(child.secrets.values, parent.secrets.values...)
	child.secrets.silent = child.secrets.silent || parent.secrets.silent
	return child, nil
}

// wrap adds to the error the submodule that failed, and the submodules that contain it.
func (p *part) wrap(err error) error {
	for ; p.parent != nil; p = p.parent {
		err = p.wrapOnce(err)
	}
	return err
}

// wrapOnce turns the error of a submodule into an error of its parent. TooLarge, and kinds of failures that may be over at the next
// attempt, are kept; all others become Submodule.
func (p *part) wrapOnce(err error) error {
	own := (*Error)(nil)
	if !errors.As(err, &own) {
		return err
	}
	kind := Submodule
	switch own.Kind {
	case Timeout, RateLimited, Unreachable, TooLarge:
		kind = own.Kind
	}
	failed := p.parent.fail(kind, "submodule %s: %s", shownPath(p.path), own.Message)
	failed.RetryAfter, failed.Detail, failed.cause = own.RetryAfter, own.Detail, own
	return failed
}

// submoduleRemote returns the Remote of a submodule. The URL comes from the repository, so anybody who can write to the repository chooses
// the host. So the credentials and the client certificate are sent only to the host that they are for. Known hosts, CA and proxy are those
// of the parent. A CA says nothing about the public servers on which submodules often are, so for other hosts it adds to the system's.
func (r *repository) submoduleRemote(url string) (Remote, error) {
	if strings.HasPrefix(url, "./") || strings.HasPrefix(url, "../") {
		joined, err := r.endpoint.join(url)
		if err != nil {
			return Remote{}, err
		}
		url = joined
	}
	to, err := parseEndpoint(url)
	if err != nil {
		return Remote{}, err
	}
	remote := Remote{URL: url, KnownHosts: r.remote.KnownHosts, CA: r.remote.CA, Proxy: r.remote.Proxy, RecurseSubmodules: true}
	remote.TrustsSystem = r.remote.TrustsSystem || to.host != r.endpoint.host
	if !r.endpoint.sharesCredentials(to) {
		return remote, nil
	}
	remote.Auth, remote.ClientCert, remote.ClientKey = r.remote.Auth, r.remote.ClientCert, r.remote.ClientKey
	if to.user == "" && to.password == "" && remote.Auth.Username == "" && remote.Auth.Password == "" && r.endpoint.scheme != schemeSSH {
		remote.Auth.Username, remote.Auth.Password = r.endpoint.user, r.endpoint.password
	}
	return remote, nil
}
