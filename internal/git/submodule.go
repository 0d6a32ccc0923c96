package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
)

const (
	// maxSubmodules bounds the submodules of a checkout, at all depths together; maxSubmoduleDepth how deep they are in each other.
	maxSubmodules     = 50
	maxSubmoduleDepth = 5

	// maxModulesFile bounds a .gitmodules file in bytes.
	maxModulesFile = 256 << 10

	modulesName = ".gitmodules"
)

var errModules = errors.New("the file .gitmodules cannot be used")

// readModules gives the URLs of the submodules by their paths.
func (p *pack) readModules(tree plumbing.Hash) (map[string]string, error) {
	content, err := p.get(tree, plumbing.TreeObject, maxTreeSize)
	if err != nil {
		return nil, err
	}
	lines, err := parseTree(content)
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		if line.name != modulesName || line.mode == "120000" {
			continue
		}
		file, err := p.get(line.hash, plumbing.BlobObject, maxModulesFile)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", errModules, err)
		}
		return parseModules(file)
	}
	return nil, nil
}

// parseModules gives the URLs in a .gitmodules file by the paths.
func parseModules(file []byte) (map[string]string, error) {
	modules := config.NewModules()
	if err := modules.Unmarshal(bytes.TrimPrefix(file, []byte("\xef\xbb\xbf"))); err != nil {
		return nil, fmt.Errorf("%w: it cannot be parsed", errModules)
	}
	urls := map[string]string{}
	for _, module := range modules.Submodules {
		urls[path.Clean(module.Path)] = module.URL
	}
	return urls, nil
}

// submodule adds the submodule. What fails says which one it is; kinds that a later attempt may mend, and TooLarge, are kept.
func (b *builder) submodule(ctx context.Context, parent *repository, m module, url string, depth int) error {
	name := shownPath(m.path)
	b.modules++
	switch {
	case url == "":
		return parent.fail(Submodule, "submodule %s: the file .gitmodules has no URL for it", name)
	case depth > maxSubmoduleDepth:
		return parent.fail(Submodule, "submodule %s: it is more than %d levels deep", name, maxSubmoduleDepth)
	case b.modules > maxSubmodules:
		return parent.fail(Submodule, "submodule %s: there are more than %d submodules", name, maxSubmodules)
	}
	err := b.openSubmodule(ctx, parent, m, url, depth)
	own := (*Error)(nil)
	if !errors.As(err, &own) {
		return err
	}
	kind := Submodule
	switch own.Kind {
	case Timeout, RateLimited, Unreachable, TooLarge:
		kind = own.Kind
	}
	failed := parent.fail(kind, "submodule %s: %s", name, own.Message)
	failed.RetryAfter, failed.cause = own.RetryAfter, own
	return failed
}

func (b *builder) openSubmodule(ctx context.Context, parent *repository, m module, url string, depth int) error {
	remote, err := parent.submoduleRemote(url)
	if err != nil {
		return err
	}
	r, err := b.client.open(remote)
	if err != nil {
		return err
	}
	// What the parent's server may not learn, or may have echoed, is not for the submodule's messages either.
	r.secrets.values = append(r.secrets.values, parent.secrets.values...)
	r.secrets.silent = r.secrets.silent || parent.secrets.silent
	_, err = b.add(ctx, r, m.sha, m.path, depth)
	return err
}

// submoduleRemote is how to reach a submodule. The URL comes from the repository, so whoever writes there chooses the host: the
// credentials and the client certificate go only to the host that they are for. Trust and proxy stay.
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
	if !r.endpoint.sharesCredentials(to) {
		return remote, nil
	}
	remote.Auth, remote.ClientCert, remote.ClientKey = r.remote.Auth, r.remote.ClientCert, r.remote.ClientKey
	if to.user == "" && to.password == "" && remote.Auth.Username == "" && remote.Auth.Password == "" && r.endpoint.scheme != schemeSSH {
		remote.Auth.Username, remote.Auth.Password = r.endpoint.user, r.endpoint.password
	}
	return remote, nil
}

// sharesCredentials says whether a submodule may have the credentials of the repository it is in: on the same host, also when one
// of the two is reached over ssh and the other over https, each on its own port.
func (e endpoint) sharesCredentials(other endpoint) bool {
	isDefault := func(e endpoint) bool {
		return e.scheme == schemeHTTPS && (e.port == "" || e.port == "443") || e.scheme == schemeSSH && (e.port == "" || e.port == "22")
	}
	return e.sameHost(other) || e.host == other.host && isDefault(e) && isDefault(other)
}
