package images

import (
	"context"
	"fmt"
	"os"

	"github.com/stack-controller/stack-controller/tests/programs"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// OtherPulumiReference names the same content as the image that Pulumi returns, and is in the same tarball: a test changes
// the image of a workspace without another import.
const OtherPulumiReference = testRepository + "pulumi:other"

// The user of the pulumi image is that of Pulumi's own images without root.
const (
	pulumiUser   = "pulumi"
	pulumiUserID = 1000
	pulumiHome   = "home/pulumi"
)

// Pulumi is the image of a workspace: stack-controller.test/pulumi:VERSION-nonroot. It has a shell, the pulumi CLI, the
// language host for YAML and the provider of tests/provider, and runs as the user pulumi (1000), whose home is /home/pulumi.
func Pulumi(ctx context.Context, progress func(string)) (Image, error) {
	shell, err := busybox(ctx)
	if err != nil {
		return Image{}, err
	}
	cli, err := tools.Path(ctx, "pulumi", progress)
	if err != nil {
		return Image{}, err
	}
	languageHost, err := tools.Path(ctx, "pulumi-language-yaml", progress)
	if err != nil {
		return Image{}, err
	}
	staging, err := os.MkdirTemp("", "pulumi-image-")
	if err != nil {
		return Image{}, fmt.Errorf("create a directory for the plugins of the pulumi image: %w", err)
	}
	defer os.RemoveAll(staging)
	if _, err := programs.PutProvider(ctx, staging); err != nil {
		return Image{}, err
	}
	home, err := homeLayer(staging)
	if err != nil {
		return Image{}, err
	}
	bin := layer{directory("pulumi", 0o755, 0), directory("pulumi/bin", 0o755, 0)}
	return save(ctx, "pulumi", progress, contents{
		references: []string{testRepository + "pulumi:" + pulumiVersion + "-nonroot", OtherPulumiReference},
		// What changes most comes last.
		layers: []layer{
			shell,
			append(bin[:2:2], program("pulumi/bin/pulumi", cli, 0)),
			append(bin[:2:2], program("pulumi/bin/pulumi-language-yaml", languageHost, 0)),
			home,
		},
		config: containerConfig{
			User: pulumiUser, Env: []string{"PATH=/pulumi/bin:" + shellPath, "HOME=/" + pulumiHome}, WorkingDir: "/" + pulumiHome,
			Cmd: []string{"pulumi"},
		},
	})
}

// homeLayer is the user with its home, in which the plugins are as they are in the staging directory.
func homeLayer(staging string) (layer, error) {
	result := append(users(pulumiUser, pulumiUserID, "/"+pulumiHome), directory("home", 0o755, 0))
	for _, dir := range []string{"", "/.pulumi"} {
		result = append(result, directory(pulumiHome+dir, 0o755, pulumiUserID))
	}
	installed, err := copied(pulumiHome+"/.pulumi", staging, pulumiUserID)
	if err != nil {
		return nil, fmt.Errorf("read the plugins of the pulumi image: %w", err)
	}
	return append(result, installed...), nil
}
