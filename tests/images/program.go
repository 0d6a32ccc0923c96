package images

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// Program is a program of the current source tree, by the directory of its main package, beside a shell:
// stack-controller.test/NAME:latest, with NAME that of the directory. It runs as user 1000 and is /bin/NAME.
func Program(ctx context.Context, directory string, progress func(string)) (Image, error) {
	shell, err := busybox(ctx)
	if err != nil {
		return Image{}, err
	}
	staging, err := os.MkdirTemp("", "program-image-")
	if err != nil {
		return Image{}, fmt.Errorf("create a directory for the program %s: %w", directory, err)
	}
	defer os.RemoveAll(staging)
	name := path.Base(directory)
	binary := filepath.Join(staging, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", binary, "./"+directory)
	cmd.Dir = tools.RepositoryRoot()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if output, err := cmd.CombinedOutput(); err != nil {
		return Image{}, fmt.Errorf("build the program %s: %w\n%s", directory, err, output[max(0, len(output)-failureTail):])
	}
	return save(ctx, name, progress, contents{
		references: []string{testRepository + name + ":latest"},
		layers:     []layer{shell, append(users("user", 1000, "/tmp"), program("bin/"+name, binary, 0))},
		config:     containerConfig{User: "1000:1000", Env: []string{"PATH=" + shellPath, "HOME=/tmp"}, Entrypoint: []string{"/bin/" + name}},
	})
}
