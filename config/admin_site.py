"""Our admin site: plain django.contrib.admin under our name.

Not in runtime_jobs.admin: importing that package registers its pages, which needs this class to be there already.
"""

from django.contrib.admin import AdminSite


class JobAdminSite(AdminSite):
    site_header = "AI jobs"
    site_title = "AI jobs"
    index_title = "Back office"
    enable_nav_sidebar = False  # the lists need its width
