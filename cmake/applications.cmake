# SPDX-License-Identifier: Apache-2.0
# The applications of Fleet: their sources in fleet/applications and their programs in apps, for the lists of both folders and of
# the tests that start every program.
set(fleet_application_sources bert resnet transformer vgg)
set(fleet_application_programs bert resnet50 transformer vgg16)
