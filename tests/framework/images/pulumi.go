package images

import (
	"context"
	"fmt"
	"os"

	"github.com/stack-controller/stack-controller/tests/framework/programs"
	"github.com/stack-controller/stack-controller/tests/tools"
)

// OtherPulumiReference is another name of the image that Pulumi returns, in the same tarball. With it a test can change the image of a
// workspace without another import.
const OtherPulumiReference = testRepository + "pulumi:other"

// The user of the pulumi image is the user of Pulumi's own nonroot images.
const (
	pulumiUser   = "pulumi"
	pulumiUserID = 1000
	pulumiHome   = "home/pulumi"
)

// Pulumi returns the image of a workspace: stack-controller.test/pulumi:VERSION-nonroot. It has a shell, the pulumi CLI, the language host
// for YAML and the provider of tests/framework/provider, and runs as the user pulumi (1000), whose home is /home/pulumi.
func Pulumi(ctx context.Context, progress func(string)) (Image, error) {
	version, err := tools.Version("pulumi")
	if err != nil {
		return Image{}, err
	}
	staging, err := os.MkdirTemp("", "pulumi-image-")
	if err != nil {
		return Image{}, fmt.Errorf("create a directory for the plugins of the pulumi image: %w", err)
	}
	defer os.RemoveAll(staging)
	c, err := pulumiContents(ctx, staging, progress)
	if err != nil {
		return Image{}, err
	}
	c.references = []string{testRepository + "pulumi:" + version + "-nonroot", OtherPulumiReference}
	return save(ctx, "pulumi", progress, c)
}

// pulumiContents returns what is in the image of a workspace. The staging directory stays until the image is saved.
func pulumiContents(ctx context.Context, staging string, progress func(string)) (contents, error) {
	shell, err := busybox(ctx)
	if err != nil {
		return contents{}, err
	}
	cli, err := tools.Path(ctx, "pulumi", progress)
	if err != nil {
		return contents{}, err
	}
	languageHost, err := tools.Path(ctx, "pulumi-language-yaml", progress)
	if err != nil {
		return contents{}, err
	}
	if _, err := programs.PutProvider(ctx, staging); err != nil {
		return contents{}, err
	}
	home, err := homeLayer(staging)
	if err != nil {
		return contents{}, err
	}
	bin := layer{directory("pulumi", 0o755, 0), directory("pulumi/bin", 0o755, 0)}
	return contents{
		// The content that changes most often comes last.
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
	}, nil
}

// homeLayer returns the user and its home directory, with the plugins from the staging directory.
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
