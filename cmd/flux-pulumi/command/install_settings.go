package command

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/stack-controller/stack-controller/config"
)

// checkSettings returns an error if the installation has settings that the manifests would take away, as those of an overlay, or images of
// another registry although the user has named none.
func (c *cluster) checkSettings(ctx context.Context, objects []*unstructured.Unstructured, named bool) error {
	present := &appsv1.Deployment{}
	err := c.read(ctx, client.ObjectKey{Namespace: config.Namespace, Name: controllerName}, present)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	wanted := &appsv1.Deployment{}
	for _, object := range objects {
		if object.GetKind() == "Deployment" {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, wanted); err != nil {
				return fmt.Errorf("read the Deployment of the manifests: %w", err)
			}
		}
	}
	before, after := repositoryOf(managerOf(present).Image), repositoryOf(managerOf(wanted).Image)
	if !named && before != "" && before != after {
		return fmt.Errorf("nothing was changed: the installation has the image %s, and this would take %s. Name that of the new version with --image, and "+
			"that of its agent with --agent-image, or take what the release has with --force", before, after)
	}
	if lost := lostSettings(present, wanted); len(lost) > 0 {
		return fmt.Errorf("nothing was changed: the installation has other settings, which this would take away: %s. "+
			"Upgrade it in the way in which it was installed, or take them away with --force", strings.Join(lost, ", "))
	}
	return nil
}

// lostSettings returns what somebody else than this program has set in the Deployment and would not have when it is as wanted: the names of
// flags, and "resources". Variables and volumes stay, because their lists are merged.
func lostSettings(present, wanted *appsv1.Deployment) (lost []string) {
	before, after := managerOf(present), managerOf(wanted)
	if others(present, "f:args") {
		for _, arg := range before.Args {
			if name, _, _ := strings.Cut(arg, "="); !slices.Contains(after.Args, arg) && !slices.Contains(lost, name) {
				lost = append(lost, name)
			}
		}
	}
	if others(present, "f:resources") && !equality.Semantic.DeepEqual(before.Resources, after.Resources) {
		lost = append(lost, "resources")
	}
	return lost
}

// repositoryOf returns the name of an image without its tag and its digest.
func repositoryOf(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if tag := strings.LastIndex(image, ":"); tag > strings.LastIndex(image, "/") {
		return image[:tag]
	}
	return image
}

// others reports whether somebody else than this program has set the field.
func others(object metav1.Object, field string) bool {
	return slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager != fieldOwner && entry.FieldsV1 != nil && bytes.Contains(entry.FieldsV1.GetRawBytes(), []byte(`"`+field+`"`))
	})
}

// managerOf returns the container of the controller.
func managerOf(deployment *appsv1.Deployment) corev1.Container {
	containers := deployment.Spec.Template.Spec.Containers
	if i := slices.IndexFunc(containers, func(container corev1.Container) bool { return container.Name == "manager" }); i >= 0 {
		return containers[i]
	}
	return corev1.Container{}
}
