// Package images makes the container images that a test's cluster runs: no registry is asked, everything comes from the
// pinned tools, from the current source tree and from Debian's busybox-static.
//
// Each image is a tarball that "ctr --namespace=k8s.io images import" takes. It is built once per content, into the images
// directory of the cache of the tools; several processes may ask for it at the same time. The functions build what is missing,
// which takes minutes when a tool was never built; progress, when not nil, is then told how far it is.
package images

import (
	"context"

	"github.com/stack-controller/stack-controller/tests/tools"
)

// Image is an image in a file.
type Image struct {
	// Reference is the name that a pod uses, with its tag. Nothing can be pulled, so its imagePullPolicy must not be Always.
	Reference string
	// Tar is the path of the tarball.
	Tar string
}

// Versions of what the images contain: those that tests/tools pins.
const (
	pulumiVersion              = "v3.250.0"
	sourceControllerVersion    = "v1.9.3"
	kustomizeControllerVersion = "v1.9.4"
	// notificationControllerVersion is that of the same release of Flux.
	notificationControllerVersion = "v1.9.3"
)

// testRepository is where the images are that only tests know.
const testRepository = "stack-controller.test/"

// fluxUser is the user of Flux's images; the kubelet checks that it is not root, so it must be a number.
const (
	fluxUser   = "65534:65534"
	fluxUserID = 65534
)

// Busybox is a shell with the usual commands: stack-controller.test/busybox:latest. It runs as user 1000.
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

// Pause is the image of the container that holds a pod together: stack-controller.test/pause:latest.
func Pause(ctx context.Context, progress func(string)) (Image, error) {
	shell, err := busybox(ctx)
	if err != nil {
		return Image{}, err
	}
	return save(ctx, "pause", progress, contents{
		references: []string{testRepository + "pause:latest"},
		layers:     []layer{shell},
		// The longest time that the program takes, 68 years.
		config: containerConfig{User: "65535:65535", Entrypoint: []string{"/bin/sleep", "2147483647"}},
	})
}

// SourceController is Flux's source-controller: stack-controller.test/source-controller with the tag of its version.
func SourceController(ctx context.Context, progress func(string)) (Image, error) {
	return fluxController(ctx, "source-controller", sourceControllerVersion, progress)
}

// KustomizeController is Flux's kustomize-controller: stack-controller.test/kustomize-controller with the tag of its version.
func KustomizeController(ctx context.Context, progress func(string)) (Image, error) {
	return fluxController(ctx, "kustomize-controller", kustomizeControllerVersion, progress)
}

// NotificationController is Flux's notification-controller: stack-controller.test/notification-controller with the tag of its version.
func NotificationController(ctx context.Context, progress func(string)) (Image, error) {
	return fluxController(ctx, "notification-controller", notificationControllerVersion, progress)
}

func fluxController(ctx context.Context, name, version string, progress func(string)) (Image, error) {
	path, err := tools.Path(ctx, name, progress)
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

// save returns the image from the cache, where it writes it first when it is not there. The first reference is the image's.
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
