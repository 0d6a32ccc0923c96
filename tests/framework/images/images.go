// Package images builds the container images that a test's cluster runs. It asks no registry: everything comes from the pinned tools, from
// the current source tree and from Debian's busybox-static.
//
// Each image is a tarball that "ctr --namespace=k8s.io images import" accepts. It is built once per content, into the directory images of
// the tools' cache; several processes may request it at the same time. The functions build missing tools, which takes minutes if a tool was
// never built. If progress is not nil, it is called with messages about the progress.
package images

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// Image is an image in a file.
type Image struct {
	// Reference is the name that a pod uses, with its tag. Nothing can be pulled, so its imagePullPolicy must not be Always.
	Reference string
	// Tar is the path of the tarball.
	Tar string
	// IsForeign is true for an image that was not built here.
	IsForeign bool
}

// testRepository is the repository of the images that only tests use.
const testRepository = "stack-controller.test/"

// fluxUser is the user of Flux's images; the kubelet checks that it is not root, so it must be a number.
const (
	fluxUser   = "65534:65534"
	fluxUserID = 65534
)

// Busybox returns an image with a shell and the usual commands: stack-controller.test/busybox:latest. It runs as user 1000.
func Busybox(ctx context.Context, progress func(string)) (Image, error) {
	shell, err := busybox(ctx)
	if err != nil {
		return Image{}, err
	}
	return save(ctx, "busybox", progress, contents{
		references: []string{testRepository + "busybox:latest"},
		layers:     []layer{shell, append(users("user", 1000, "/home/user"), directory("home", 0o755, 0), directory("home/user", 0o755, 1000))},
		config:     containerConfig{User: "1000:1000", Env: []string{"PATH=" + shellPath}, Cmd: []string{"/bin/sh"}},
	})
}

// Pause returns the image of the container that holds a pod's namespaces: stack-controller.test/pause:latest.
func Pause(ctx context.Context, progress func(string)) (Image, error) {
	shell, err := busybox(ctx)
	if err != nil {
		return Image{}, err
	}
	return save(ctx, "pause", progress, contents{
		references: []string{testRepository + "pause:latest"},
		layers:     []layer{shell},
		// The longest time that the program accepts, 68 years.
		config: containerConfig{User: "65535:65535", Entrypoint: []string{"/bin/sleep", "2147483647"}},
	})
}

// SourceController returns the image of Flux's source-controller: stack-controller.test/source-controller with the tag of its version.
func SourceController(ctx context.Context, progress func(string)) (Image, error) {
	return fluxController(ctx, "source-controller", progress)
}

// KustomizeController returns the image of Flux's kustomize-controller: stack-controller.test/kustomize-controller with the tag of its
// version.
func KustomizeController(ctx context.Context, progress func(string)) (Image, error) {
	return fluxController(ctx, "kustomize-controller", progress)
}

// NotificationController returns the image of Flux's notification-controller: stack-controller.test/notification-controller with the tag of
// its version.
func NotificationController(ctx context.Context, progress func(string)) (Image, error) {
	return fluxController(ctx, "notification-controller", progress)
}

func fluxController(ctx context.Context, name string, progress func(string)) (Image, error) {
	path, err := tools.Path(ctx, name, progress)
	if err != nil {
		return Image{}, err
	}
	version, err := tools.Version(name)
	if err != nil {
		return Image{}, err
	}
	system := append(users("controller", fluxUserID, "/"), temporary())
	return save(ctx, name, progress, contents{
		references: []string{testRepository + name + ":" + version},
		layers:     []layer{system, {directory("usr", 0o755, 0), directory("usr/bin", 0o755, 0), program("usr/bin/"+name, path, 0)}},
		config:     containerConfig{User: fluxUser, Env: []string{"PATH=" + shellPath}, Entrypoint: []string{"/usr/bin/" + name}},
	})
}

// save returns the image, and writes it into the cache if it is not there. The first reference becomes the reference of the image.
func save(ctx context.Context, name string, progress func(string), c contents) (Image, error) {
	a, err := newArchive(c)
	if err != nil {
		return Image{}, err
	}
	path, err := cached(ctx, name, a.key(), progress, a.write)
	if err != nil {
		return Image{}, err
	}
	return Image{Reference: c.references[0], Tar: path}, nil
}

// shellPath is the PATH of the images.
const shellPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// busybox returns the layer that all images with a shell share: Debian's static busybox, a link per command, and /tmp.
func busybox(ctx context.Context) (layer, error) {
	binary, err := exec.LookPath("busybox")
	if err != nil {
		return nil, fmt.Errorf("find the shell of the images, install the package busybox-static: %w", err)
	}
	if binary, err = filepath.EvalSymlinks(binary); err != nil {
		return nil, fmt.Errorf("find the shell of the images: %w", err)
	}
	if err := checkStatic(binary); err != nil {
		return nil, err
	}
	output, err := exec.CommandContext(ctx, binary, "--list-full").Output()
	if err != nil {
		return nil, fmt.Errorf("list the commands of %s: %w", binary, err)
	}
	commands := strings.Fields(string(output))
	slices.Sort(commands)
	result := layer{temporary()}
	for _, dir := range []string{"bin", "sbin", "usr", "usr/bin", "usr/sbin", "root"} {
		result = append(result, directory(dir, 0o755, 0))
	}
	result = append(result, program("bin/busybox", binary, 0))
	for _, command := range commands {
		// A few commands are in other directories, such as /linuxrc. No script needs them.
		if strings.HasSuffix(path.Dir(command), "bin") && command != "bin/busybox" {
			result = append(result, link(command, "/bin/busybox"))
		}
	}
	return result, nil
}

// checkStatic returns an error if the program needs shared libraries, which the images do not have.
func checkStatic(binary string) error {
	file, err := elf.Open(binary)
	if err != nil {
		return fmt.Errorf("look at %s: %w", binary, err)
	}
	defer file.Close()
	if slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return fmt.Errorf("%s needs shared libraries: install the package busybox-static instead of busybox", binary)
	}
	return nil
}

// Program returns an image with a shell and a program of the current source tree, given by the directory of its main package:
// stack-controller.test/NAME:latest, where NAME is the name of the directory. It runs as user 1000, and the program is /bin/NAME.
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
