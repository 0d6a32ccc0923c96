package images

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// productVersion is the version of the programs in the images of the current source tree.
const productVersion = "test"

// failureTail is how many bytes of ko's output an error shows.
const failureTail = 4096

// product is a released image.
type product struct {
	repository string // without a registry
	main       string // directory of the main package
}

// Controller returns the image of stack-controller, built from the current source tree as a release is:
// stack-controller/stack-controller:test.
func Controller(ctx context.Context, progress func(string)) (Image, error) {
	return product{repository: "stack-controller/stack-controller", main: "."}.image(ctx, progress)
}

// Agent returns the image of the agent, built from the current source tree as a release is: stack-controller/stack-controller-agent:test.
func Agent(ctx context.Context, progress func(string)) (Image, error) {
	return product{repository: "stack-controller/stack-controller-agent", main: "./cmd/agent"}.image(ctx, progress)
}

func (p product) image(ctx context.Context, progress func(string)) (Image, error) {
	ko, err := tools.Path(ctx, "ko", progress)
	if err != nil {
		return Image{}, err
	}
	inputs, err := p.inputs(ctx)
	if err != nil {
		return Image{}, err
	}
	base, err := newBase(runtime.GOARCH)
	if err != nil {
		return Image{}, err
	}
	key := hashOf([]byte(ko), []byte(inputs), []byte(base.digest))
	path, err := cached(ctx, filepath.Base(p.repository), key, progress, func(path string) error {
		if err := p.build(ctx, ko, base, path, progress); err != nil {
			return err
		}
		// The cached image must match its key.
		if now, err := p.inputs(ctx); err != nil || now != inputs {
			return errors.Join(fmt.Errorf("build the image %s: the source tree changed meanwhile: try again", p.repository), err)
		}
		return nil
	})
	if err != nil {
		return Image{}, err
	}
	return Image{Reference: p.repository + ":test", Tar: path}, nil
}

// build runs ko, which compiles the program and adds it to the base.
func (p product) build(ctx context.Context, ko string, base base, path string, progress func(string)) error {
	server, err := serve(base)
	if err != nil {
		return err
	}
	defer server.Close()
	if progress != nil {
		progress(fmt.Sprintf("building the image %s (minutes when it was never compiled)", p.repository))
	}
	cmd := exec.CommandContext(ctx, ko, "build", "--bare", "--push=false", "--tags=test", "--sbom=none", "--image-user="+productUser,
		"--platform=linux/"+runtime.GOARCH, "--tarball="+path, p.main)
	cmd.Dir = tools.RepositoryRoot()
	cmd.Env = append(os.Environ(), "KO_DOCKER_REPO="+p.repository, "KO_DEFAULTBASEIMAGE="+server.baseReference(), "VERSION="+productVersion,
		"CGO_ENABLED=0", "GOFLAGS=-buildvcs=false", "GOWORK=off")
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the image %s: %w\n%s", p.repository, err, output[max(0, len(output)-failureTail):])
	}
	return nil
}

// inputs returns a hash of everything in the source tree that ko compiles, and of how ko compiles it.
func (p product) inputs(ctx context.Context) (string, error) {
	root := tools.RepositoryRoot()
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Dir,Standard,GoFiles,SFiles,EmbedFiles", p.main)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	output, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("list what %s is compiled from: %w", p.main, err)
	}
	files := []string{filepath.Join(root, ".ko.yaml"), filepath.Join(root, "go.mod"), filepath.Join(root, "go.sum")}
	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		var pkg struct {
			Dir                         string
			Standard                    bool
			GoFiles, SFiles, EmbedFiles []string
		}
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return "", fmt.Errorf("read what %s is compiled from: %w", p.main, err)
		}
		// Packages of other modules are determined by their versions in go.mod.
		if pkg.Standard || (pkg.Dir != root && !strings.HasPrefix(pkg.Dir, root+"/")) {
			continue
		}
		for _, names := range [][]string{pkg.GoFiles, pkg.SFiles, pkg.EmbedFiles} {
			for _, name := range names {
				files = append(files, filepath.Join(pkg.Dir, name))
			}
		}
	}
	return hashFiles(root, files)
}

// hashFiles returns the hash of the names, relative to the root, and of the content of the files.
func hashFiles(root string, files []string) (string, error) {
	parts := [][]byte{[]byte(runtime.Version())}
	for _, file := range files {
		name, err := filepath.Rel(root, file)
		if err != nil {
			return "", err
		}
		content, err := os.ReadFile(file)
		if err != nil {
			return "", fmt.Errorf("read the source of the images: %w", err)
		}
		parts = append(parts, []byte(fmt.Sprintf("\x00%s %d ", name, len(content))), content)
	}
	return hashOf(parts...), nil
}
