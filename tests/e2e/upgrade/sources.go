package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/fluxcd/pkg/apis/meta"
	sourcev1 "github.com/fluxcd/source-controller/api/v1"

	pulumiv1 "github.com/stack-controller/stack-controller/api/pulumi/v1"
	"github.com/stack-controller/stack-controller/tests/framework/gitserver"
	"github.com/stack-controller/stack-controller/tests/framework/localsystem"
	"github.com/stack-controller/stack-controller/tests/framework/objectstore"
	"github.com/stack-controller/stack-controller/tests/framework/ociregistry"
	"github.com/stack-controller/stack-controller/tests/framework/systemtest"
)

// hourly is an interval that the run does not wait for.
var hourly = metav1.Duration{Duration: time.Hour}

// source is a source that the Stacks of a namespace run.
type source struct {
	// name is the name of the namespace, of the source and of the project.
	name string
	// create creates the namespace and the source, which offers a program that returns v1, and returns a Stack that runs it.
	create func(context.Context) (*pulumiv1.Stack, error)
	// commit makes the source offer a program that returns v2.
	commit func(context.Context) error
}

// files returns a program whose output is the value.
func files(project string, value int) gitserver.Files {
	return systemtest.Program(project, "outputs:", fmt.Sprintf("  value: v%d", value))
}

// enter creates a namespace with a Secret with the passphrase, and the objects.
func (u *upgrade) enter(ctx context.Context, name string, objects ...client.Object) error {
	secret := &corev1.Secret{StringData: map[string]string{localsystem.PassphraseKey: "passphrase"}}
	secret.Name = localsystem.PassphraseSecret
	namespace := &corev1.Namespace{Name: name}
	if err := u.system.Client.Create(ctx, namespace); err != nil {
		return err
	}
	for _, object := range append([]client.Object{secret}, objects...) {
		object.SetNamespace(name)
		if object.GetName() == "" {
			object.SetName(name)
		}
		if err := u.system.Client.Create(ctx, object); err != nil {
			return err
		}
	}
	return nil
}

// fetch makes source-controller look at the source now.
func (u *upgrade) fetch(ctx context.Context, source client.Object) error {
	before := source.DeepCopyObject().(client.Object)
	source.SetAnnotations(map[string]string{meta.ReconcileRequestAnnotation: time.Now().Format(time.RFC3339Nano)})
	return u.system.Client.Patch(ctx, source, client.MergeFrom(before))
}

func (u *upgrade) gitRepository() *source {
	const name = "git-repository"
	var app *localsystem.App
	return &source{
		name: name,
		create: func(ctx context.Context) (stack *pulumiv1.Stack, err error) {
			app, stack, err = u.system.Provide(ctx, name, files(name, 1))
			return stack, err
		},
		commit: func(ctx context.Context) error {
			if _, err := app.Repository.Commit(files(name, 2)); err != nil {
				return err
			}
			return u.system.Fetch(ctx, app)
		},
	}
}

func (u *upgrade) ociRepository(registry *ociregistry.Registry) *source {
	const name, tag = "oci-repository", "latest"
	repository := &sourcev1.OCIRepository{Spec: sourcev1.OCIRepositorySpec{
		URL: registry.URL(name), Insecure: true, Interval: new(hourly), Reference: &sourcev1.OCIRepositoryRef{Tag: tag},
	}}
	push := func(ctx context.Context, value int) error {
		layers := []ociregistry.Layer{{MediaType: ociregistry.ContentType, Content: systemtest.Packed(files(name, value))}}
		_, err := registry.Push(ctx, name, tag, ociregistry.Artifact{Layers: layers})
		return err
	}
	return &source{
		name: name,
		create: func(ctx context.Context) (*pulumiv1.Stack, error) {
			return u.system.NewStack(name, name, sourcev1.OCIRepositoryKind), errors.Join(push(ctx, 1), u.enter(ctx, name, repository))
		},
		commit: func(ctx context.Context) error { return errors.Join(push(ctx, 2), u.fetch(ctx, repository)) },
	}
}

func (u *upgrade) bucket(store *objectstore.Store) *source {
	const name, secretName = "bucket", "objectstore"
	bucket := &sourcev1.Bucket{Spec: sourcev1.BucketSpec{
		Provider: sourcev1.BucketProviderGeneric, BucketName: name, Endpoint: store.Address, Region: objectstore.Region,
		Insecure: true, Interval: hourly, SecretRef: &meta.LocalObjectReference{Name: secretName},
	}}
	put := func(ctx context.Context, value int) (err error) {
		for file, content := range files(name, value) {
			err = errors.Join(err, store.Put(ctx, name, file, []byte(content)))
		}
		return err
	}
	return &source{
		name: name,
		create: func(ctx context.Context) (*pulumiv1.Stack, error) {
			secret := &corev1.Secret{StringData: map[string]string{"accesskey": objectstore.AccessKey, "secretkey": store.SecretKey}}
			secret.Name = secretName
			err := errors.Join(store.CreateBucket(ctx, name), put(ctx, 1), u.enter(ctx, name, secret, bucket))
			return u.system.NewStack(name, name, sourcev1.BucketKind), err
		},
		commit: func(ctx context.Context) error { return errors.Join(put(ctx, 2), u.fetch(ctx, bucket)) },
	}
}

func (u *upgrade) externalArtifact() *source {
	const name = "external-artifact"
	external := &sourcev1.ExternalArtifact{}
	offer := func(ctx context.Context, value int) error {
		before := external.DeepCopy()
		external.Status.Artifact = u.artifacts.Put(fmt.Sprintf("v%d", value), systemtest.Packed(files(name, value)))
		external.Status.Conditions = []metav1.Condition{{
			Type: meta.ReadyCondition, Status: metav1.ConditionTrue, Reason: meta.SucceededReason, LastTransitionTime: metav1.Now(),
		}}
		return u.system.Client.Status().Patch(ctx, external, client.MergeFrom(before))
	}
	return &source{
		name: name,
		create: func(ctx context.Context) (*pulumiv1.Stack, error) {
			return u.system.NewStack(name, name, sourcev1.ExternalArtifactKind), errors.Join(u.enter(ctx, name, external), offer(ctx, 1))
		},
		commit: func(ctx context.Context) error { return offer(ctx, 2) },
	}
}

// gitServer is a repository that stack-controller itself polls.
func (u *upgrade) gitServer() *source {
	const name = "git-server"
	var repository *gitserver.Repository
	return &source{
		name: name,
		create: func(ctx context.Context) (stack *pulumiv1.Stack, err error) {
			if repository, _, err = u.system.Git.Create(name, files(name, 1)); err != nil {
				return nil, err
			}
			stack = u.system.NewStack(name, name, "")
			stack.Spec.FluxSource = nil
			stack.Spec.GitSource = pulumiv1.GitSource{ProjectRepo: repository.URL, Branch: gitserver.Branch}
			return stack, u.enter(ctx, name)
		},
		commit: func(context.Context) error {
			_, err := repository.Commit(files(name, 2))
			return err
		},
	}
}

func (u *upgrade) program() *source {
	const name = "program"
	outputs := func(value int) map[string]apiextensionsv1.JSON {
		return map[string]apiextensionsv1.JSON{"value": {Raw: fmt.Appendf(nil, `"v%d"`, value)}}
	}
	program := &pulumiv1.Program{Program: pulumiv1.ProgramSpec{Outputs: outputs(1)}}
	return &source{
		name: name,
		create: func(ctx context.Context) (*pulumiv1.Stack, error) {
			stack := u.system.NewStack(name, name, "")
			stack.Spec.FluxSource = nil
			stack.Spec.ProgramRef = &pulumiv1.ProgramReference{Name: name}
			return stack, u.enter(ctx, name, program)
		},
		commit: func(ctx context.Context) error {
			before := program.DeepCopy()
			program.Program.Outputs = outputs(2)
			return u.system.Client.Patch(ctx, program, client.MergeFrom(before))
		},
	}
}
