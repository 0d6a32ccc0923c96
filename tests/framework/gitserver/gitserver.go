// Package gitserver runs a real git server on loopback (smart HTTP, with fluxcd/pkg/gittestserver and the git program), with a simple way
// to create repositories and push commits. The server can also listen at another address.
package gitserver

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/util"
	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/config"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/storage/memory"

	"github.com/fluxcd/pkg/gittestserver"
)

// Branch is the branch that commits go to.
const Branch = "main"

// headerTimeout bounds the time in which a client sends the headers of a request.
const headerTimeout = 30 * time.Second

// Files are the contents of files by their slash-separated paths.
type Files map[string]string

// FilesFromDir reads the regular files below a directory.
func FilesFromDir(dir string) (Files, error) {
	files := Files{}
	root := os.DirFS(dir)
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := fs.ReadFile(root, name)
		files[name] = string(content)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", dir, err)
	}
	return files, nil
}

// Server serves the repositories below one directory.
type Server struct {
	server *gittestserver.GitServer
	public *http.Server // nil if the server listens only on loopback
	url    string       // without the name of a repository
}

// Start starts a server for the repositories below the directory, which it creates. It needs the git program.
func Start(dir string) (*Server, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory of the git server: %w", err)
	}
	server := gittestserver.NewGitServer(dir)
	if err := server.StartHTTP(); err != nil {
		return nil, fmt.Errorf("start the git server: %w", err)
	}
	return &Server{server: server, url: server.HTTPAddress()}, nil
}

// Publish makes the server also serve on the listener, for example in the network of a cluster, so that pods can clone. From then on URLs
// contain the listener's address. Commits are still pushed over loopback.
func (s *Server) Publish(listener net.Listener) error {
	loopback, err := url.Parse(s.server.HTTPAddress())
	if err != nil {
		return fmt.Errorf("find the address of the git server: %w", err)
	}
	s.public = &http.Server{Handler: httputil.NewSingleHostReverseProxy(loopback), ReadHeaderTimeout: headerTimeout}
	s.url = "http://" + listener.Addr().String()
	go func() { _ = s.public.Serve(listener) }() // it serves until it is closed
	return nil
}

// Stop stops serving. The repositories stay on disk.
func (s *Server) Stop() {
	if s.public != nil {
		_ = s.public.Close() // this also closes the listener, whose error no longer matters
	}
	s.server.StopHTTP()
}

// URL is the address of the named repository, whether it exists or not.
func (s *Server) URL(name string) string { return s.url + "/" + name }

// Repository is one repository on the server, with a clone of its own to commit in.
type Repository struct {
	// URL is the URL for a GitRepository.
	URL string

	clone *git.Repository
	// signer signs commits from now on; nil for unsigned commits.
	signer *openpgp.Entity
}

// SignWith makes later commits signed with the key, or unsigned if it is nil.
func (r *Repository) SignWith(key *openpgp.Entity) { r.signer = key }

// Create creates a repository and pushes the files as its first commit.
func (s *Server) Create(name string, files Files) (repository *Repository, sha string, err error) {
	bare := filepath.Join(s.server.Root(), filepath.FromSlash(path.Clean("/"+name)))
	options := &git.PlainInitOptions{Bare: true}
	options.DefaultBranch = plumbing.NewBranchReferenceName(Branch)
	if _, err := git.PlainInitWithOptions(bare, options); err != nil {
		return nil, "", fmt.Errorf("create repository %s: %w", name, err)
	}
	clone, err := git.InitWithOptions(memory.NewStorage(), memfs.New(), options.InitOptions)
	if err != nil {
		return nil, "", fmt.Errorf("create a clone of %s: %w", name, err)
	}
	repository = &Repository{URL: s.URL(name), clone: clone}
	if _, err := clone.CreateRemote(&config.RemoteConfig{Name: git.DefaultRemoteName, URLs: []string{s.server.HTTPAddress() + "/" + name}}); err != nil {
		return nil, "", fmt.Errorf("name the remote of %s: %w", name, err)
	}
	sha, err = repository.Commit(files)
	return repository, sha, err
}

// Commit writes the files, commits and pushes. Other files stay as they are. It returns the commit's SHA.
func (r *Repository) Commit(files Files) (sha string, err error) {
	return r.change("change", func(tree *git.Worktree) error {
		for name, content := range files {
			if err := util.WriteFile(tree.Filesystem, name, []byte(content), 0o644); err != nil {
				return fmt.Errorf("write %s: %w", name, err)
			}
		}
		return nil
	})
}

// Remove removes the named files, commits and pushes. It returns the commit's SHA.
func (r *Repository) Remove(names ...string) (sha string, err error) {
	return r.change("remove", func(tree *git.Worktree) error {
		for _, name := range names {
			if _, err := tree.Remove(name); err != nil {
				return fmt.Errorf("remove %s: %w", name, err)
			}
		}
		return nil
	})
}

func (r *Repository) change(message string, edit func(*git.Worktree) error) (string, error) {
	tree, err := r.clone.Worktree()
	if err != nil {
		return "", fmt.Errorf("open the work tree: %w", err)
	}
	if err := edit(tree); err != nil {
		return "", err
	}
	if err := tree.AddWithOptions(&git.AddOptions{All: true}); err != nil {
		return "", fmt.Errorf("stage the change: %w", err)
	}
	author := &object.Signature{Name: "Demo", Email: "demo@example.com", When: time.Now()}
	hash, err := tree.Commit(message, &git.CommitOptions{Author: author, AllowEmptyCommits: true, SignKey: r.signer})
	if err != nil {
		return "", fmt.Errorf("commit: %w", err)
	}
	err = r.clone.Push(&git.PushOptions{RefSpecs: []config.RefSpec{"refs/heads/*:refs/heads/*"}})
	if err != nil && !errors.Is(err, git.NoErrAlreadyUpToDate) {
		return "", fmt.Errorf("push to %s: %w", r.URL, err)
	}
	return hash.String(), nil
}

// Tag pushes a tag of the last commit.
func (r *Repository) Tag(name string) error {
	return r.name(plumbing.NewTagReferenceName(name))
}

// NewBranch pushes another branch, which points to the last commit and does not follow later ones.
func (r *Repository) NewBranch(name string) error {
	return r.name(plumbing.NewBranchReferenceName(name))
}

// name pushes the last commit under the reference.
func (r *Repository) name(reference plumbing.ReferenceName) error {
	head, err := r.clone.Head()
	if err != nil {
		return fmt.Errorf("find the last commit: %w", err)
	}
	if err := r.clone.Storer.SetReference(plumbing.NewHashReference(reference, head.Hash())); err != nil {
		return fmt.Errorf("create %s: %w", reference, err)
	}
	err = r.clone.Push(&git.PushOptions{RefSpecs: []config.RefSpec{config.RefSpec(reference + ":" + reference)}})
	if err != nil {
		return fmt.Errorf("push %s to %s: %w", reference, r.URL, err)
	}
	return nil
}
